"""Host values on the way to the device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(values: Tensor | Sequence[int] | Sequence[float], device: torch.device) -> Tensor:
    """`values` on `device`, in stream order: the host waits for nothing that a GPU still has to do."""
    tensor = torch.as_tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
