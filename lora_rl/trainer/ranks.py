"""The ranks of one trainer: their groups, what they agree on before a collective, and what they add up after it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.errors import LoraRlError, PeerFailed

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """This rank's process groups. Ranks count through tensor-parallel, then data-parallel, then pipeline groups."""

    device: torch.device
    """Where this rank computes."""
    world: Any
    tp: Any
    """Ranks that share each layer."""
    dp: Any
    """Copies of this rank's share of the model, but for experts."""
    ep: Any
    """Those among the copies that share the experts of a layer."""
    edp: Any
    """Those among the copies that hold the same experts."""
    pp: Any
    """Stages, one after the other."""
    pp_back: Any
    """The same ranks, for gradients: in one NCCL group they would wait behind activations that no one asks for yet."""

    @property
    def is_last_stage(self) -> bool:
        return self.pp.rank() == self.pp.size() - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank reports of its samples: on the last stage, the first of those that share its layers."""
        return self.is_last_stage and self.tp.rank() == 0

    def sum_spoken(self, values: Tensor) -> Tensor:
        """`values` of the ranks that speak, summed in place: the same bits on every rank."""
        if self.world.size() > 1:
            if not self.speaks:
                values.zero_()
            dist.all_reduce(values, group=self.world)
        return values

    def sum_spoken_by_name(self, sums: Mapping[Any, Mapping[str, float]]) -> dict[Any, dict[str, float]]:
        """As `sum_spoken`, for numbers by key and name. A name that only some ranks have counts as zero elsewhere."""
        spoken = [sums]
        if self.world.size() > 1:
            spoken = [{}] * self.world.size()
            dist.all_gather_object(spoken, sums if self.speaks else {}, group=self.world)
        total: dict[Any, dict[str, float]] = {}
        for part in spoken:
            for key, named in part.items():
                into = total.setdefault(key, {})
                for name, value in named.items():
                    into[name] = into.get(name, 0.0) + value
        return total


def together(work: Callable[[], T]) -> T:
    """`work` on every rank. Where it raises on one, all raise: that one its own error, the others PeerFailed."""
    result, error = _attempt(work)
    if dist.get_world_size() > 1:
        texts: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(texts, None if error is None else f"{type(error).__name__}: {error}")
        failed = [(rank, text) for rank, text in enumerate(texts) if text is not None]
        if failed and error is None:
            raise PeerFailed(f"rank {failed[0][0]} failed: {failed[0][1]}; its own reply has the cause")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def peers_named(method: Callable[P, T]) -> Callable[P, T]:
    """`method`, which raises PeerFailed where a collective broke off because another rank had ended."""

    @wraps(method)
    def naming(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except LoraRlError:
            raise
        except RuntimeError as error:
            # gloo raises a plain RuntimeError that names its source file.
            if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):
                raise
            reason = str(error).partition("\n")[0]
            raise PeerFailed(f"a collective broke off ({reason}); another rank has ended, see its own error") from error

    return naming


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
