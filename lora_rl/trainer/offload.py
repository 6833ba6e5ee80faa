"""The trainer's memory moved to the host and back, so that an engine can use the device meanwhile.

What moves is the memory behind the tensors: whoever holds a tensor or a view of it holds the same one afterwards.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


class Offload:
    """The device memory of one trainer."""

    def __init__(self, frozen: Iterable[Tensor]):
        """`frozen` never change: their copies on the host are made once, and kept."""
        self._frozen = [_Memory(storage) for storage in _storages(frozen)]
        self._moved: list[_Memory] = []
        self.away = False

    def offload(self, changing: Iterable[Tensor]) -> int:
        """Frees the memory of the frozen tensors and of `changing` on their device; returns its bytes."""
        known = {memory.storage._cdata for memory in self._frozen}
        self._moved = [_Memory(storage) for storage in _storages(changing) if storage._cdata not in known]
        moving = [*self._frozen, *self._moved]
        for memory in moving:
            memory.leave()
        self.away = True
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return sum(memory.size for memory in moving)

    def onload(self) -> None:
        """Brings everything back. Raises torch.OutOfMemoryError where the device has no room; then it is of no use."""
        for memory in (*self._frozen, *self._moved):
            memory.come_back()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._moved = []
        self.away = False


class _Memory:
    def __init__(self, storage: torch.UntypedStorage):
        self.storage = storage
        self.size = storage.nbytes()
        self._host: Tensor | None = None

    def leave(self) -> None:
        if self._host is None:
            device_bytes = self._bytes()
            self._host = torch.empty(self.size, dtype=torch.uint8, pin_memory=device_bytes.is_cuda)
            self._host.copy_(device_bytes)
        self.storage.resize_(0)

    def come_back(self) -> None:
        if self._host is not None:
            self.storage.resize_(self.size)
            self._bytes().copy_(self._host, non_blocking=True)

    def _bytes(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)


def _storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    """The memory behind the tensors, each once."""
    return list({tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}.values())
