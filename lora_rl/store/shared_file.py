"""Files in memory that processes share, as tensors. For a GPU their pages are locked: copies run at the bus's speed.

Needs torch, so `lora_rl.store` itself does not import it.
"""

import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PORTABLE = 1
"""cudaHostRegisterPortable: locked for every device that the process uses."""

logger = logging.getLogger("lora_rl.store")


class SharedFile:
    """A file's bytes, mapped until `close`."""

    def __init__(self, path: Path, *, lock: bool):
        """`lock` is for a process that copies between the file and a GPU. Raises OSError where it cannot be mapped."""
        with path.open("r+b") as file:
            self.identity = _identity(os.fstat(file.fileno()))
            self.memory = mmap.mmap(file.fileno(), 0)
        self.bytes_N = torch.frombuffer(self.memory, dtype=torch.uint8)
        self._locked = lock and _lock(self.bytes_N)

    def close(self) -> None:
        """Lets go of the file; tensors that still view it keep it mapped."""
        if self._locked:
            _cuda().cudaHostUnregister(self.bytes_N.data_ptr())
        del self.bytes_N, self.memory


class SharedFiles:
    """Files of this process or another that are filled again and again, by path; one that was replaced is let go."""

    def __init__(self, *, lock: bool):
        self._lock = lock
        self._held: dict[Path, SharedFile] = {}
        self._seen: dict[Path, tuple[int, ...]] = {}

    def hold(self, path: Path) -> SharedFile:
        """The file, mapped and locked from now on."""
        self._let_go()
        if path not in self._held:
            self._held[path] = SharedFile(path, lock=self._lock)
        return self._held[path]

    def read(self, path: Path) -> Tensor:
        """The file's bytes. Held from the second time on: locking costs more than it saves one reader."""
        self._let_go()
        identity = _identity(path.stat())
        if path in self._held or self._seen.get(path) == identity:
            return self.hold(path).bytes_N
        self._seen[path] = identity
        return SharedFile(path, lock=False).bytes_N

    def _let_go(self) -> None:
        """Of files that are gone, or that others have taken the place of."""
        for path in [path for path, file in self._held.items() if not _is_at(path, file.identity)]:
            self._held.pop(path).close()
        self._seen = {path: identity for path, identity in self._seen.items() if _is_at(path, identity)}


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size


def _is_at(path: Path, identity: tuple[int, ...]) -> bool:
    with suppress(FileNotFoundError):
        return _identity(path.stat()) == identity
    return False


def _cuda() -> Any:
    return torch.cuda.cudart()


def _lock(bytes_N: Tensor) -> bool:
    """Locks the pages for the GPU; where the system refuses, copies are slower and that is all."""
    code = int(_cuda().cudaHostRegister(bytes_N.data_ptr(), bytes_N.numel(), PORTABLE))
    if code:
        logger.warning("shared memory: CUDA error %d as its pages were to be locked; copies are slower", code)
        with suppress(RuntimeError):  # torch would raise it at the next launch, whatever that is
            torch.zeros(1, device="cuda")
    return code == 0
