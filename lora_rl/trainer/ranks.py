"""What the ranks of one trainer agree on before they go into a collective: a fault of one is raised by all."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from lora_rl.errors import TrainerError

T = TypeVar("T")


def together(work: Callable[[], T]) -> T:
    """`work` on every rank. Where it raises on one, all raise: that one its own error, the others TrainerError."""
    result, error = _attempt(work)
    if dist.get_world_size() > 1:
        texts: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(texts, None if error is None else f"{type(error).__name__}: {error}")
        failed = [(rank, text) for rank, text in enumerate(texts) if text is not None]
        if failed and error is None:
            raise TrainerError(f"rank {failed[0][0]} failed: {failed[0][1]}; its own reply has the cause")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def first_rank_alone(work: Callable[[], T]) -> T:
    """`work` on rank 0 alone; its result on every rank. Raises on every rank where it raises."""
    result = together(lambda: work() if dist.get_rank() == 0 else None)
    results = [result]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(results, src=0)
    return results[0]  # pyright: ignore[reportReturnType]


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    # Any fault must reach the peers, or they wait in the next collective for ever.
    except Exception as error:
        return None, error
