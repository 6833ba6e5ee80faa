"""Log-probability and entropy of taken tokens, without ever holding all logits.

N rows, D width, V vocabulary (this rank's share of it), C rows of a chunk.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.trainer.pointwise import fused_on_cuda

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Logits that live at a time: what a cache holds; what keeps a GPU busy (1 GiB)."""


def head_logits(hidden_CD: Tensor, head_VD: Tensor) -> Tensor:
    """Logits [C, V]: on a GPU in float32, as the engine has them there. In bfloat16 most of one is off by 0.03."""
    if hidden_CD.is_cuda and hidden_CD.dtype in (torch.bfloat16, torch.float16):
        product: Any = torch.mm
        return product(hidden_CD, head_VD.T, out_dtype=torch.float32)
    return hidden_CD @ head_VD.T


def token_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    temperature_N: Tensor,
    tp_group: Any,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability [N] of each target and entropy [N] of its distribution, in float32, at each row's temperature.

    `head_VD` is this rank's rows of the frozen output projection. The log-probability carries gradient to `hidden_ND`,
    and with `entropy_gradient` the entropy does: it costs another product with the head.
    """
    return _TokenLogprobs.apply(hidden_ND, head_VD, targets_N, temperature_N, tp_group, entropy_gradient)


class _TokenLogprobs(torch.autograd.Function):
    """The slope of each row's result, [N, D], is worked out while its logits are there: they are computed once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        temperature_N: Tensor,
        group: Any,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logps, entropies, logp_slopes, entropy_slopes = [], [], [], []
        for rows in _chunks(hidden_ND, head_VD):
            targets_C, temperature_C = targets_N[rows], temperature_N[rows]
            logits_CV = head_logits(hidden_ND[rows], head_VD)
            highest_C = _reduce(logits_CV.amax(1) / temperature_C, group, dist.ReduceOp.MAX)
            local_C, own_C = _local(targets_C, len(head_VD), group)
            taken_C = logits_CV.gather(1, local_C[:, None])[:, 0] / temperature_C - highest_C
            sums = (*_sums(logits_CV, temperature_C, highest_C), taken_C.where(own_C, 0))
            sum_C, weighted_C, taken_C = _reduce(torch.stack(sums), group, dist.ReduceOp.SUM)
            log_sum_C = sum_C.log()
            log_z_C, logp_C, entropy_C = highest_C + log_sum_C, taken_C - log_sum_C, log_sum_C - weighted_C / sum_C
            logps.append(logp_C)
            entropies.append(entropy_C)
            if ctx.needs_input_grad[0]:
                slope_CV = _logp_slope(logits_CV, temperature_C, log_z_C, head_VD.dtype)
                # At the target it is 1 - p: a small difference that must not be rounded twice.
                at_target_C = ((1 - logp_C.exp()) / temperature_C).to(slope_CV.dtype)
                own_C, local_C = own_C[:, None], local_C[:, None]
                slope_CV.scatter_(1, local_C, at_target_C[:, None].where(own_C, slope_CV.gather(1, local_C)))
                logp_slopes.append(slope_CV @ head_VD)
                if entropy_gradient:
                    entropy_slopes.append(
                        _entropy_slope(logits_CV, temperature_C, log_z_C, entropy_C).to(head_VD.dtype) @ head_VD
                    )
        slopes = [
            _reduce(torch.cat(parts), group, dist.ReduceOp.SUM) for parts in (logp_slopes, entropy_slopes) if parts
        ]
        ctx.save_for_backward(*slopes)
        return torch.cat(logps), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        slopes_ND = ctx.saved_tensors
        grad_ND = slopes_ND[0] * grads[0][:, None]
        for slope_ND in slopes_ND[1:]:
            grad_ND += slope_ND * grads[1][:, None]
        return grad_ND.to(slopes_ND[0].dtype), None, None, None, None, None


@fused_on_cuda
def _sums(logits_CV: Tensor, temperature_C: Tensor, highest_C: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over the vocabulary of exp(x) and of x exp(x), where x is the logit above the highest."""
    shifted_CV = (logits_CV / temperature_C[:, None]).sub_(highest_C[:, None])
    exp_CV = shifted_CV.exp()
    return exp_CV.sum(1), exp_CV.mul_(shifted_CV).sum(1)


@fused_on_cuda
def _logp_slope(logits_CV: Tensor, temperature_C: Tensor, log_z_C: Tensor, dtype: torch.dtype) -> Tensor:
    """d log p(target) / d logit = -p / temperature, but for the target."""
    p_CV = (logits_CV / temperature_C[:, None]).sub_(log_z_C[:, None]).exp_()
    return p_CV.div_(-temperature_C[:, None]).to(dtype)


@fused_on_cuda
def _entropy_slope(logits_CV: Tensor, temperature_C: Tensor, log_z_C: Tensor, entropy_C: Tensor) -> Tensor:
    """d entropy / d logit = -p (log p + entropy) / temperature."""
    logp_CV = (logits_CV / temperature_C[:, None]).sub_(log_z_C[:, None])
    slope_CV = logp_CV.exp().mul_(logp_CV.add_(entropy_C[:, None]))
    return slope_CV.div_(-temperature_C[:, None])


def _chunks(hidden_ND: Tensor, head_VD: Tensor) -> list[slice]:
    num_rows, size = len(hidden_ND), max(1, CHUNK_LOGITS[head_VD.device.type] // len(head_VD))
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _local(targets_C: Tensor, vocab: int, group: Any) -> tuple[Tensor, Tensor]:
    """Targets within this rank's share of the vocabulary (0 for others'), and which they are."""
    local_C = targets_C - group.rank() * vocab
    own_C = (local_C >= 0) & (local_C < vocab)
    return local_C.where(own_C, 0), own_C


def _reduce(values: Tensor, group: Any, op: Any) -> Tensor:
    if group.size() > 1:
        dist.all_reduce(values, op=op, group=group)
    return values
