"""Values between host and device, without a wait for each."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def on_device(values: Tensor | Sequence[int] | Sequence[float], device: torch.device) -> Tensor:
    """`values` on `device`, in stream order: the host waits for nothing that a GPU still has to do."""
    tensor = values if isinstance(values, Tensor) else _tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` on the CPU, whole. One that is there already is itself, no copy."""
    copies = {name: tensor.detach().to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values()}:
        wait_for_copies(device)
    return copies


def copy_to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU that no later step changes; from a GPU it is whole after `wait_for_copies`."""
    return tensor.detach().to("cpu", non_blocking=True, copy=True)


def wait_for_copies(device: torch.device) -> None:
    """Until all copies to the host that were begun are whole."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _tensor(values: Sequence[int] | Sequence[float]) -> Tensor:
    """As torch would make it, but by way of NumPy: torch takes five times as long for a list."""
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
