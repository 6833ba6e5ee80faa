"""Whether a model fits, what a step may have needed, and what would fit."""

import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError, safe_open

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError

GIB = 2**30


def peak_memory_gib() -> float:
    """Most memory this process has held: of the device on CUDA, resident on a CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def free_bytes(device: torch.device) -> int:
    """What the device has left; on a CPU, what this host has."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def refuse_too_large(path: Path, dtype: torch.dtype, trainer: TrainerConfig, free: int) -> None:
    """Raises TrainerError where a rank's share of the weights in `path` exceeds `free` bytes."""
    shares = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.expert_parallel
    whole = _num_elements(path) * dtype.itemsize
    if whole / shares > free:
        raise TrainerError(
            f"{path}: {whole / GIB:.3g} GiB of weights in {shares} shares (trainer.tensor_parallel x pipeline_parallel "
            f"x expert_parallel) are {whole / shares / GIB:.3g} GiB each, {free / GIB:.3g} are free; "
            f"{math.ceil(whole / free)} shares would fit"
        )


@contextmanager
def memory_named(trainer: TrainerConfig) -> Iterator[None]:
    """Within, running out of device memory is a TrainerError that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = "" if trainer.recompute else "set trainer.recompute: true, or "
        raise TrainerError(
            f"trainer.max_tokens_per_gpu: {trainer.max_tokens_per_gpu} rows at a time do not fit ({error}); "
            f"{less}lower it to {trainer.max_tokens_per_gpu // 2}"
        ) from error


def _num_elements(path: Path) -> int:
    """Numbers in the safetensors files of a directory, by their headers."""
    total = 0
    for file in path.glob("*.safetensors"):
        # The load names a file that is damaged.
        with suppress(SafetensorError), safe_open(file, framework="pt") as tensors:
            total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return total
