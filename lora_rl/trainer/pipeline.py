"""The pipeline: in which order a stage runs its micro-batches, and what passes between stages.

Megatron's own schedules make their buffers on CUDA and want its data loader. Here no shapes are exchanged, since every
stage packs alike. T rows of a micro-batch, D width.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.packing import Rows
from lora_rl.trainer.ranks import Groups

Turn = tuple[Literal["forward", "backward"], int]


def one_forward_one_backward(stage: int, num_stages: int, num_batches: int) -> Iterator[Turn]:
    """The turns of a stage in order, such that it holds activations of at most `num_stages - stage` micro-batches.

    The schedule of PipeDream-Flush (arXiv:2104.04473, figure 4, upper part).
    """
    ahead = min(num_stages - stage - 1, num_batches)
    for number in range(ahead):
        yield "forward", number
    for number in range(ahead, num_batches):
        yield "forward", number
        yield "backward", number - ahead
    for number in range(num_batches - ahead, num_batches):
        yield "backward", number


@dataclass
class Passage:
    """A micro-batch on its way through a stage: what came in, and what goes out, or on the last stage the loss."""

    received_TD: Tensor | None
    """Null on the first stage."""
    result: Tensor


class Stage:
    """This rank's layers, between those of its neighbours. All ranks must call its methods alike."""

    def __init__(self, model: FrozenModel):
        self._model = model
        self._groups = model.groups
        self._number, self._num_stages = self._groups.pp.rank(), self._groups.pp.size()
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def turns(self, num_batches: int, *, backward: bool) -> Iterator[Turn]:
        """In which order to run micro-batches forward and, where asked for, backward. To be gone through to its end."""
        if backward:
            yield from one_forward_one_backward(self._number, self._num_stages, num_batches)
        else:
            for number in range(num_batches):
                yield "forward", number
        while self._sent:
            self._sent.popleft()[0].wait()

    def forward(self, rows: Rows) -> Passage:
        """Receive, compute this stage's layers, and send on: the last stage's result is the normed output [T, D]."""
        received_TD = None
        if self._number > 0:
            received_TD = self._receive(len(rows.tokens_T), self._number - 1, self._groups.pp)
            received_TD.requires_grad_(torch.is_grad_enabled())
        result_TD = self._model.hidden_TD(rows.tokens_T, rows.positions_T, rows.layout, received_TD)
        if not self._groups.is_last_stage:
            self._send(result_TD, self._number + 1, self._groups.pp)
        return Passage(received_TD, result_TD)

    def backward(self, passage: Passage) -> None:
        """Receive the gradient of what went out, or begin with the loss; send on that of what came in."""
        gradient = None
        if not self._groups.is_last_stage:
            gradient = self._receive(len(passage.result), self._number + 1, self._groups.pp_back)
        if passage.result.requires_grad:
            passage.result.backward(gradient)
        if passage.received_TD is not None:
            received_TD = passage.received_TD
            grad_TD = torch.zeros_like(received_TD) if received_TD.grad is None else received_TD.grad
            self._send(grad_TD, self._number - 1, self._groups.pp_back)

    def _receive(self, num_rows: int, stage: int, group: Any) -> Tensor:
        size, model = (num_rows, self._model.hidden_size), self._model
        buffer = torch.empty(size, dtype=model.dtype, device=model.device)
        dist.recv(buffer, dist.get_global_rank(group, stage), group=group)
        return buffer

    def _send(self, values: Tensor, stage: int, group: Any) -> None:
        """Without waiting: a stage that waits for its receiver while that waits for it would wait for ever."""
        values = values.detach().contiguous()
        work = dist.isend(values, dist.get_global_rank(group, stage), group=group)
        self._sent.append((work, values))
        # More are under way only where no gradient comes back to hold a stage up.
        while len(self._sent) > 2 * self._num_stages:
            self._sent.popleft()[0].wait()


def on_first_rank(
    own: Iterable[tuple[str, Tensor]],
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    groups: Groups,
    keep: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Tensors of all stages on rank 0, in the order of `shapes`; nothing on the others. All ranks must call it.

    `own` are this stage's, by `names`, gathered one at a time: rank 0 holds what `keep` makes of each, and those of
    later stages on the CPU.
    """
    found: dict[str, Tensor] = {}
    # Other pipelines hold copies or shares of the same.
    concerned = dist.get_global_rank(groups.pp, 0) == 0
    held = [list(names)]
    if concerned and groups.pp.size() > 1:
        held *= groups.pp.size()
        dist.all_gather_object(held, list(names), group=groups.pp)
    for name, value in own:
        if groups.world.rank() == 0:
            found[name] = keep(value)
        elif concerned:
            dist.send(value.detach().contiguous(), 0, group=groups.pp)
    if groups.world.rank() > 0:
        return {}
    for stage, others in enumerate(held[1:], start=1):
        for name in others:
            buffer = torch.empty(shapes[name], device=groups.device)
            dist.recv(buffer, dist.get_global_rank(groups.pp, stage), group=groups.pp)
            found[name] = buffer.cpu()
    return {name: found[name] for name in shapes}
