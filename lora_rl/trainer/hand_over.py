"""An adapter's weights into memory that engines of this host share: one cast, one copy off the device."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from lora_rl.store.handover import CONFIG, WEIGHTS, ring_directory
from lora_rl.store.shared_file import SharedFiles
from lora_rl.trainer.foreach import foreach_copy_
from lora_rl.trainer.tensor_bytes import header


class HandOver:
    """What one exporter hands over, version by version. The memory of the version before the last is used again."""

    def __init__(self, device: torch.device):
        self._files = SharedFiles(lock=device.type == "cuda")

    def write(self, name: str, version: int, tensors: Mapping[str, Tensor], config: bytes, dtype: torch.dtype) -> Path:
        """A PEFT directory in shared memory with `tensors`, by their PEFT names, cast to `dtype`."""
        directory = ring_directory(name, version)
        head = header(tensors, dtype, {"format": "pt"})
        size = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
        (directory / CONFIG).write_bytes(config)
        path = directory / WEIGHTS
        _make(path, len(head) + size)
        file = self._files.hold(path)
        file.memory[: len(head)] = head
        data = file.bytes_N[len(head) :].view(dtype)
        first = next(iter(tensors.values()))
        flat = data if first.device.type == "cpu" else torch.empty(data.shape, dtype=dtype, device=first.device)
        # Not public, but views made one by one take longer than the copies into them.
        foreach_copy_(_unflatten_dense_tensors(flat, tuple(tensors.values())), tuple(tensors.values()))
        if flat is not data:
            data.copy_(flat)
        return directory


def _make(path: Path, size: int) -> None:
    """The file, with all its memory. One of another size goes first: an engine may still read it."""
    if path.exists():
        if path.stat().st_size == size:
            return
        path.unlink()
    with path.open("w+b") as file:
        # gives the file its size once it has the memory
        os.posix_fallocate(file.fileno(), 0, size)
