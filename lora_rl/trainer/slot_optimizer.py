"""AdamW for one slot: its own moments, step clock and learning rate, so that no adapter feels its neighbours."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.config import OptimizerConfig
from lora_rl.trainer.adapter import Clock
from lora_rl.trainer.foreach import foreach_mul_, foreach_norm
from lora_rl.trainer.gradients import SlotParameter
from lora_rl.trainer.ranks import Groups
from lora_rl.trainer.state_io import MOMENTS


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step did."""

    stepped: bool
    """False for a gradient or loss that was not finite, and for a gradient that is zero everywhere."""
    finite: bool
    grad_norm: float
    """Before clipping."""
    lr: float


def learning_rate(config: OptimizerConfig, samples: int) -> float:
    """The rate of the step that ends at `samples` samples: a linear rise over the warm-up, then the decay."""
    if samples < config.warmup_samples:
        return config.lr * samples / config.warmup_samples
    if config.schedule == "constant" or config.decay_samples is None:
        return config.lr
    progress = min(1.0, (samples - config.warmup_samples) / (config.decay_samples - config.warmup_samples))
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)


class SlotOptimizer:
    """Steps one slot's parameters by the gradients that backward passes left in them."""

    def __init__(
        self,
        parameters: list[SlotParameter],
        config: OptimizerConfig,
        clock: Clock,
        moments: Mapping[str, Mapping[str, Tensor]],
        groups: Groups,
        *,
        frozen: Collection[str] = (),
    ):
        """`moments` holds this rank's part of each moment by parameter name.

        `frozen` names parameters that stay as they are, whatever their gradient.
        """
        self.parameters = parameters
        self._trained = [parameter for parameter in parameters if parameter.name not in frozen]
        self.clock = clock
        self._config = config
        self._groups = groups
        # One launch for many tensors; on a CPU its bits would depend on a tensor's shape.
        fused = groups.device.type == "cuda"
        self._adamw = torch.optim.AdamW(
            # A group, since a stage of the pipeline may hold nothing of an adapter.
            [{"params": [parameter.value for parameter in self._trained]}],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=fused,
        )
        steps_N = torch.full([len(parameters)], float(clock.steps), device=groups.device if fused else "cpu")
        for parameter, step in zip(parameters, steps_N.unbind(), strict=True):
            state = self._adamw.state[parameter.value]
            state["step"] = step
            for moment in MOMENTS:
                value = moments[moment][parameter.name]
                state[moment] = value.to(parameter.value.device, torch.float32, copy=True).contiguous()

    def moment(self, name: str, parameter: SlotParameter) -> Tensor:
        """This rank's part of `exp_avg` or `exp_avg_sq`."""
        return self._adamw.state[parameter.value][name]

    def tensors(self) -> Iterator[Tensor]:
        """The moments, this rank's part."""
        for parameter in self.parameters:
            yield from (self.moment(name, parameter) for name in MOMENTS)

    def step(self, num_samples: int, *, finite_loss: bool = True) -> StepResult:
        """Clip, step and drop the gradient of `num_samples` samples. All ranks must call it.

        A gradient or loss that is not finite is dropped and counted (a NaN loss can have a finite gradient). A gradient
        that is zero everywhere (all advantages zero) is no step at all: neither momentum nor weight decay moves the
        adapter where nothing was learnt. The sample clock goes on in both cases.
        """
        gradients = [(p, gradient) for p in self._trained if (gradient := p.value.grad) is not None]
        norm = self._norm(gradients)
        finite, samples = finite_loss and math.isfinite(norm), self.clock.samples + num_samples
        lr = learning_rate(self._config, samples)
        stepped = finite and norm > 0
        if stepped:
            self._clip([gradient for _, gradient in gradients], norm)
            self._adamw.param_groups[0]["lr"] = lr
            self._adamw.step()
        self.drop_gradient()
        self.clock = Clock(
            steps=self.clock.steps + stepped,
            samples=samples,
            skipped_in_a_row=self.clock.skipped_in_a_row + 1 if not finite else 0,
        )
        return StepResult(stepped=stepped, finite=finite, grad_norm=norm, lr=lr)

    def drop_gradient(self) -> None:
        for parameter in self.parameters:
            parameter.value.grad = None

    def _norm(self, gradients: Sequence[tuple[SlotParameter, Tensor]]) -> float:
        """Of all that is trained, each part once, however many ranks hold it.

        Summed over all ranks at once, so that all take the same decision from the same bits.
        """
        counted: dict[bool, list[Tensor]] = {True: [], False: []}
        for parameter, gradient in gradients:
            copies = self._groups.edp if parameter.of_experts else self._groups.dp
            if copies.rank() == 0:
                counted[parameter.split_dim is not None].append(gradient)
        split, whole = (_sum_of_squares(counted[is_split], self._groups.device) for is_split in (True, False))
        total = torch.stack([split, whole / self._groups.tp.size()])
        if self._groups.world.size() > 1:
            dist.all_reduce(total, group=self._groups.world)
        return total.sum().sqrt().item()

    def _clip(self, gradients: Sequence[Tensor], norm: float) -> None:
        limit = self._config.clip_grad_norm
        if limit is not None and norm > limit and gradients:
            foreach_mul_(gradients, limit / (norm + 1e-6))


def _sum_of_squares(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """In float32, which AdamW squares in as well: beyond its range the sum is infinite."""
    if not tensors:
        return torch.zeros((), device=device)
    # In float32 a CPU's norm of a large tensor is right to three digits only.
    norms = torch.stack(foreach_norm(tensors, 2, torch.float64))
    return norms.square().sum().float()
