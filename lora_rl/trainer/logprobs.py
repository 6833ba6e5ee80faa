"""Log-probability and entropy of taken tokens, without ever holding all logits.

N rows, D width, V vocabulary (this rank's share of it), C rows of a chunk.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 28}
"""float32 logits that live at a time, and as many exponentials: what a cache holds; what keeps a GPU busy (1 GiB)."""


def token_logprobs(
    hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, temperature_N: Tensor, tp_group: Any
) -> tuple[Tensor, Tensor]:
    """Log-probability [N] of each target and entropy [N] of its distribution, in float32, at each row's temperature.

    `head_VD` is this rank's rows of the frozen output projection. Both results carry gradient to `hidden_ND`; the
    logits are computed again in the backward pass.
    """
    return _TokenLogprobs.apply(hidden_ND, head_VD, targets_N, temperature_N, tp_group)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, temperature_N: Tensor, group: Any
    ) -> tuple[Tensor, Tensor]:
        logp, entropy, log_z = [], [], []
        for rows in _chunks(hidden_ND, head_VD):
            shifted_CV = _logits(hidden_ND[rows], head_VD, temperature_N[rows])
            highest_C = _reduce(shifted_CV.amax(1), group, dist.ReduceOp.MAX)
            shifted_CV -= highest_C[:, None]
            taken_C = _take(shifted_CV, targets_N[rows], group)
            exp_CV = shifted_CV.exp()
            sum_C, taken_C, weighted_C = _reduce(
                torch.stack([exp_CV.sum(1), taken_C, exp_CV.mul_(shifted_CV).sum(1)]), group, dist.ReduceOp.SUM
            )
            log_sum_C = sum_C.log()
            logp.append(taken_C - log_sum_C)
            entropy.append(log_sum_C - weighted_C / sum_C)
            log_z.append(highest_C + log_sum_C)
        logp_N, entropy_N, log_z_N = torch.cat(logp), torch.cat(entropy), torch.cat(log_z)
        ctx.save_for_backward(hidden_ND, head_VD, targets_N, temperature_N, entropy_N, log_z_N)
        ctx.group = group
        ctx.set_materialize_grads(False)
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None, None]:
        hidden_ND, head_VD, targets_N, temperature_N, entropy_N, log_z_N = ctx.saved_tensors
        grad_logp_N, grad_entropy_N = (torch.zeros_like(entropy_N) if grad is None else grad for grad in grads)
        with_entropy = grads[1] is not None
        parts = []
        for rows in _chunks(hidden_ND, head_VD):
            logp_CV = _logits(hidden_ND[rows], head_VD, temperature_N[rows]).sub_(log_z_N[rows, None])
            grad_CV = logp_CV.exp()
            if with_entropy:
                # d entropy / d logit = -p (log p + entropy)
                logp_CV.add_(entropy_N[rows, None]).mul_(grad_entropy_N[rows, None]).add_(grad_logp_N[rows, None])
                grad_CV.mul_(logp_CV).neg_()
            else:
                grad_CV.mul_(-grad_logp_N[rows, None])
            _add_at_target(grad_CV, targets_N[rows], grad_logp_N[rows], ctx.group)
            grad_CV /= temperature_N[rows, None]
            parts.append(grad_CV.to(head_VD.dtype) @ head_VD)
        return _reduce(torch.cat(parts), ctx.group, dist.ReduceOp.SUM), None, None, None, None


def _chunks(hidden_ND: Tensor, head_VD: Tensor) -> list[slice]:
    num_rows, size = len(hidden_ND), max(1, CHUNK_LOGITS[head_VD.device.type] // len(head_VD))
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _logits(hidden_CD: Tensor, head_VD: Tensor, temperature_C: Tensor) -> Tensor:
    return (hidden_CD @ head_VD.T).float().div_(temperature_C[:, None])


def _local(targets_C: Tensor, vocab: int, group: Any) -> tuple[Tensor, Tensor]:
    """Targets within this rank's share of the vocabulary (0 for others'), and which they are."""
    local_C = targets_C - group.rank() * vocab
    own_C = (local_C >= 0) & (local_C < vocab)
    return local_C.where(own_C, 0), own_C


def _take(values_CV: Tensor, targets_C: Tensor, group: Any) -> Tensor:
    """The target's value [C], 0 where another rank has it."""
    local_C, own_C = _local(targets_C, values_CV.shape[1], group)
    return values_CV.gather(1, local_C[:, None])[:, 0].where(own_C, 0)


def _add_at_target(values_CV: Tensor, targets_C: Tensor, added_C: Tensor, group: Any) -> None:
    local_C, own_C = _local(targets_C, values_CV.shape[1], group)
    values_CV.scatter_add_(1, local_C[:, None], added_C.where(own_C, 0)[:, None])


def _reduce(values: Tensor, group: Any, op: Any) -> Tensor:
    if group.size() > 1:
        dist.all_reduce(values, op=op, group=group)
    return values
