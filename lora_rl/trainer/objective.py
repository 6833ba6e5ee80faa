"""The loss of one adapter's batch, token by token, such that any split into micro-batches adds up to the whole.

B samples of the batch; N response tokens in one micro-batch, of all adapters that share an algorithm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lora_rl.algorithms.aggregation import loss_weights
from lora_rl.algorithms.cispo import cispo_loss
from lora_rl.algorithms.clipped import clipped_loss
from lora_rl.algorithms.grpo import grpo_advantages
from lora_rl.algorithms.gspo import gspo_loss
from lora_rl.algorithms.importance import geometric_mask, icepop_mask, sequence_mask, tis_weights
from lora_rl.algorithms.kl import kl_penalty
from lora_rl.algorithms.reinforce import reinforce_plus_plus_advantages
from lora_rl.algorithms.rloo import rloo_advantages
from lora_rl.algorithms.types import TokenLoss
from lora_rl.config import AlgorithmConfig
from lora_rl.config.algorithm import CispoLoss, ClippedLoss, GrpoAdvantage, GspoLoss, ReinforceAdvantage, RlooAdvantage
from lora_rl.data.types import FinishReason, Sample


@dataclass(frozen=True, kw_only=True)
class TokenTerms:
    """What is known of each response token. `sample_N` counts samples from 0 in this micro-batch."""

    logp_N: Tensor
    """Now; carries the gradient."""
    entropy_N: Tensor
    logp_rollout_N: Tensor
    logp_trainer_N: Tensor
    """The trainer's before the step, without dropout."""
    logp_ref_N: Tensor | None
    """Adapter off; null without a KL term."""
    advantage_N: Tensor
    weight_N: Tensor
    """The sample's `sample_weights`."""
    sample_N: Tensor

    def logp_old_N(self, algorithm: AlgorithmConfig) -> Tensor:
        """Denominator of the ratio."""
        return self.logp_rollout_N if algorithm.old_logp == "rollout" else self.logp_trainer_N


class TokenSums:
    """What each slot's tokens add up to, by name. They stay on the device until all is done: it is waited for once."""

    def __init__(self, slots: Sequence[int]):
        self._names: dict[int, tuple[str, ...]] = dict.fromkeys(slots, ())
        self._sums: dict[int, Tensor] = {}

    def add(self, slot: int, names: tuple[str, ...], sums_M: Tensor) -> None:
        """M more to add; a slot's names are always the same."""
        self._names[slot] = names
        self._sums[slot] = self._sums[slot] + sums_M if slot in self._sums else sums_M

    def read(self) -> dict[int, dict[str, float]]:
        """By slot; nothing for a slot without tokens here."""
        values = iter(torch.cat(list(self._sums.values())).tolist() if self._sums else [])
        named = {slot: {name: next(values) for name in self._names[slot]} for slot in self._sums}
        return {slot: named.get(slot, {}) for slot in self._names}


def advantages(rewards_B: Tensor, samples: Sequence[Sample], algorithm: AlgorithmConfig) -> Tensor:
    """Advantages [B] of a whole batch; samples with one prompt id are a group."""
    ids = {id: index for index, id in enumerate(dict.fromkeys(sample.prompt_id for sample in samples))}
    prompt_B = torch.tensor([ids[sample.prompt_id] for sample in samples])
    match algorithm.advantage:
        case ReinforceAdvantage(group_baseline=group_baseline):
            return reinforce_plus_plus_advantages(rewards_B, prompt_B, group_baseline=group_baseline)
        case GrpoAdvantage(divide_by_std=divide_by_std):
            return _each_group(rewards_B, prompt_B, lambda group: grpo_advantages(group, divide_by_std=divide_by_std))
        case RlooAdvantage():
            return _each_group(rewards_B, prompt_B, rloo_advantages)


def shaped_rewards(
    rewards_B: Tensor, logp: Sequence[Tensor], logp_ref: Sequence[Tensor], algorithm: AlgorithmConfig
) -> Tensor:
    """Rewards [B] less the KL penalty, summed over each sample's tokens."""
    if algorithm.kl is None:
        return rewards_B
    penalties = [
        kl_penalty(now, reference, estimator=algorithm.kl.estimator).sum()
        for now, reference in zip(logp, logp_ref, strict=True)
    ]
    return rewards_B - algorithm.kl.coefficient * torch.stack(penalties).to(rewards_B.device)


def sample_weights(samples: Sequence[Sample], algorithm: AlgorithmConfig, max_response_tokens: int) -> Tensor:
    """Weight [B] of each sample's tokens in the sum that is the loss of the whole batch."""
    lengths_B = torch.tensor([0 if _left_out(sample, algorithm) else len(sample.response_tokens) for sample in samples])
    return loss_weights(lengths_B, aggregation=algorithm.aggregation, max_response_tokens=max_response_tokens)


def token_losses(terms: TokenTerms, algorithm: AlgorithmConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Each token's part of the loss [N], and by name what it adds to a metric [N]: to a mean unless named `loss/`."""
    token = _policy_loss(terms, algorithm)
    policy_N = token.loss_T
    if algorithm.old_logp == "recompute" and algorithm.tis_clip is not None:
        policy_N = policy_N * tis_weights(terms.logp_trainer_N, terms.logp_rollout_N, clip=algorithm.tis_clip)
    masks = _masks(terms, algorithm)
    for masked_N in masks.values():
        policy_N = policy_N.masked_fill(masked_N, 0.0)
    parts = {"policy": terms.weight_N * policy_N}
    if algorithm.entropy_coefficient:
        parts["entropy"] = -algorithm.entropy_coefficient * (terms.weight_N * terms.entropy_N)
    metrics = _metrics(terms, token) | {name: masked_N.float() for name, masked_N in masks.items()}
    if algorithm.kl is not None and terms.logp_ref_N is not None:
        estimator = algorithm.kl.estimator
        if algorithm.kl.where == "loss":
            kl_N = kl_penalty(terms.logp_N, terms.logp_ref_N, estimator=estimator)
            parts["kl"] = algorithm.kl.coefficient * (terms.weight_N * kl_N)
        metrics["policy/kl_reference/mean"] = kl_penalty(terms.logp_trainer_N, terms.logp_ref_N, estimator=estimator)
    loss_N = torch.stack(list(parts.values())).sum(0)
    metrics |= {f"loss/{name}": part_N.detach() for name, part_N in parts.items()}
    metrics["loss/total"] = loss_N.detach()
    return loss_N, metrics


def _policy_loss(terms: TokenTerms, algorithm: AlgorithmConfig) -> TokenLoss:
    logp, old, advantage = terms.logp_N, terms.logp_old_N(algorithm), terms.advantage_N
    match algorithm.loss:
        case ClippedLoss(eps_low=low, eps_high=high, dual_clip=dual_clip):
            return clipped_loss(
                logp, old, advantage, eps_low=low, eps_high=low if high is None else high, dual_clip=dual_clip
            )
        case GspoLoss(eps_low=low, eps_high=high):
            return gspo_loss(logp, old, advantage, terms.sample_N, eps_low=low, eps_high=low if high is None else high)
        case CispoLoss(eps_low=low, eps_high=high):
            return cispo_loss(logp, old, advantage, eps_low=low, eps_high=high)


def _masks(terms: TokenTerms, algorithm: AlgorithmConfig) -> dict[str, Tensor]:
    """Tokens [N] that each mask leaves out of the policy loss, by the name of their share."""
    logp, rollout, sample = terms.logp_trainer_N, terms.logp_rollout_N, terms.sample_N
    masks = {}
    if (band := algorithm.icepop) is not None:
        masks["mismatch/icepop_masked"] = icepop_mask(logp, rollout, low=band.low, high=band.high)
    if (band := algorithm.sequence_mask) is not None:
        masks["mismatch/sequence_masked"] = sequence_mask(logp, rollout, sample, low=band.low, high=band.high)
    if (band := algorithm.geometric_mask) is not None:
        masks["mismatch/geometric_masked"] = geometric_mask(logp, rollout, sample, low=band.low, high=band.high)
    return masks


def _metrics(terms: TokenTerms, token: TokenLoss) -> dict[str, Tensor]:
    # log of trainer over engine: the samples are the engine's, so k3 of it estimates KL(engine || trainer).
    gap_N = terms.logp_trainer_N - terms.logp_rollout_N
    return {
        "policy/clip_fraction": token.clipped_T.float(),
        "policy/ratio/mean": token.ratio_T,
        "policy/entropy/mean": terms.entropy_N.detach(),
        "policy/logp/mean": terms.logp_trainer_N,
        "mismatch/logp_abs/mean": gap_N.abs(),
        "mismatch/kl/mean": kl_penalty(terms.logp_rollout_N, terms.logp_trainer_N, estimator="k3"),
    }


def _left_out(sample: Sample, algorithm: AlgorithmConfig) -> bool:
    return algorithm.overlong_filter and sample.finish_reason is FinishReason.LENGTH


def _each_group(rewards_B: Tensor, prompt_B: Tensor, of_group) -> Tensor:
    advantages_B = torch.zeros_like(rewards_B)
    for prompt in prompt_B.unique():
        group_B = prompt_B == prompt
        advantages_B[group_B] = of_group(rewards_B[group_B])
    return advantages_B
