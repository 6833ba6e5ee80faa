"""Forward and backward over the batches of several adapters at once.

B samples of one adapter's batch; N response tokens of the adapter in a micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from lora_rl.config import AlgorithmConfig, SamplingConfig
from lora_rl.data.types import Sample
from lora_rl.trainer.logprobs import token_logprobs
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.loss_scale import loss_scale
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.objective import TokenSums, TokenTerms, advantages, sample_weights, shaped_rewards, token_losses
from lora_rl.trainer.packing import MicroBatch, pack
from lora_rl.trainer.pipeline import Passage, Stage
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.transfer import on_device


@dataclass(frozen=True, kw_only=True)
class Job:
    """One adapter's batch for one optimizer step. Every sample has a reward."""

    slot: int
    samples: Sequence[Sample]
    algorithm: AlgorithmConfig
    sampling: SamplingConfig
    dropout_seed: str | None = None
    """Fixes this step's dropout masks; null for none."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """A job, and what follows from its samples as a whole. Per sample: its tokens' log-probabilities."""

    job: Job
    advantages_B: Tensor
    weights_B: Tensor
    logp_ref: list[Tensor] | None
    """Adapter off; null without a KL term."""
    logp_trainer: list[Tensor] | None
    """Before the step; null where the step's own forward pass gives it."""
    loss_scale: float
    """Factor on the loss while its gradient is computed."""

    def learns(self, index: int) -> bool:
        """Whether the sample has any gradient."""
        algorithm = self.job.algorithm
        kl_in_loss = algorithm.kl is not None and algorithm.kl.where == "loss"
        any_term = bool(self.advantages_B[index] != 0) or kl_in_loss or algorithm.entropy_coefficient > 0
        return any_term and bool(self.weights_B[index] != 0)


class Learner:
    """Computes on one model. It keeps nothing between calls: gradients are left in the slots' parameters."""

    def __init__(self, model: FrozenModel, bank: SlotBank, *, max_tokens: int):
        self._model = model
        self._bank = bank
        self._groups = model.groups
        self._stage = Stage(model)
        self._max_tokens = max_tokens

    def forward_backward(self, jobs: Sequence[Job]) -> dict[int, dict[str, float]]:
        """Add the gradient of each job's loss to its slot's parameters; returns metrics by slot.

        However the samples are packed, a job's gradient is that of its batch alone. Samples without gradient (zero
        advantage and no other term, or zero weight) are run forward only: the means count them. All ranks must call
        it alike.
        """
        batches = {job.slot: self._prepare(job) for job in jobs}
        sums = TokenSums([job.slot for job in jobs])
        num_rows = 0
        for learning in (True, False):
            chosen = {
                slot: {i: sample for i, sample in enumerate(batch.job.samples) if batch.learns(i) == learning}
                for slot, batch in batches.items()
            }
            micro_batches = self._packed(chosen)
            with torch.set_grad_enabled(learning):
                self._run(micro_batches, batches, sums)
            num_rows += sum(len(micro_batch.tokens_T) for micro_batch in micro_batches)
        self._bank.take_gradients({slot: batch.loss_scale for slot, batch in batches.items()})
        return self._metrics(jobs, sums, num_rows)

    def _prepare(self, job: Job) -> _Batch:
        algorithm = job.algorithm
        rewards_B = torch.tensor([sample.reward for sample in job.samples])
        logp_ref = self._score(job, adapter_on=False) if algorithm.kl is not None else None
        kl_in_reward = algorithm.kl is not None and algorithm.kl.where == "reward"
        # Without dropout the step's own forward pass has these, but only after the rewards are needed.
        score_first = job.dropout_seed is not None or (kl_in_reward and algorithm.old_logp == "recompute")
        logp_trainer = self._score(job, adapter_on=True) if score_first else None
        if kl_in_reward and logp_ref is not None:
            logp = logp_trainer if algorithm.old_logp == "recompute" else None
            rollout = [torch.tensor(sample.logp_rollout, device=self._model.device) for sample in job.samples]
            rewards_B = shaped_rewards(rewards_B, logp or rollout, logp_ref, algorithm)
        advantages_B = advantages(rewards_B, job.samples, algorithm)
        weights_B = sample_weights(job.samples, algorithm, job.sampling.max_response_tokens)
        return _Batch(
            job=job,
            advantages_B=advantages_B,
            weights_B=weights_B,
            logp_ref=logp_ref,
            logp_trainer=logp_trainer,
            loss_scale=loss_scale(weights_B, advantages_B, self._model.dtype),
        )

    @torch.no_grad()
    def _score(self, job: Job, *, adapter_on: bool) -> list[Tensor]:
        """Log-probabilities of each sample's tokens, without dropout, on every rank."""
        lengths = [len(sample.response_tokens) for sample in job.samples]
        scores = torch.zeros(sum(lengths), device=self._model.device)
        by_sample = scores.split(lengths)
        micro_batches = self._packed({job.slot: dict(enumerate(job.samples))})
        for _, number in self._stage.turns(len(micro_batches), backward=False):
            micro_batch = micro_batches[number]
            with self._bank.routed(micro_batch.spans if adapter_on else ()):
                passage = self._stage.forward(micro_batch)
            if self._groups.is_last_stage:
                logp_N, _ = self._logprobs(micro_batch, passage.result, {job.slot: job})
                for piece in micro_batch.pieces:
                    by_sample[piece.sample].copy_(logp_N[piece.tokens])
        self._groups.sum_spoken(scores)
        return list(by_sample)

    def _run(self, micro_batches: Sequence[MicroBatch], batches: Mapping[int, _Batch], sums: TokenSums) -> None:
        """Each micro-batch forward, and backward where gradients are on; adds to `sums`."""
        learning = torch.is_grad_enabled()
        under_way: dict[int, Passage] = {}
        for direction, number in self._stage.turns(len(micro_batches), backward=learning):
            micro_batch = micro_batches[number]
            with self._bank.routed(_spans(micro_batch, batches)):
                if direction == "backward":
                    self._stage.backward(under_way.pop(number))
                    continue
                passage = self._stage.forward(micro_batch)
                if self._groups.is_last_stage:
                    passage.result = self._loss(micro_batch, passage.result, batches, sums)
                if learning:
                    under_way[number] = passage

    def _loss(
        self,
        micro_batch: MicroBatch,
        hidden_TD: Tensor,
        batches: Mapping[int, _Batch],
        sums: TokenSums,
    ) -> Tensor:
        """The micro-batch's part of the loss, over all its slots, each times its `loss_scale`; adds to `sums`."""
        jobs = {slot: batch.job for slot, batch in batches.items()}
        logp_N, entropy_N = self._logprobs(micro_batch, hidden_TD, jobs)
        if not micro_batch.pieces:
            # No sample, but all layers are passed, backward too, in step with other copies.
            return 0 * logp_N.sum()
        losses = []
        for alike in _alike(micro_batch, batches):
            own = [micro_batch.tokens_of(batch.job.slot) for batch in alike]
            lengths, tokens = [each.stop - each.start for each in own], slice(own[0].start, own[-1].stop)
            terms = self._terms(micro_batch, alike, logp_N[tokens], entropy_N[tokens])
            loss_N, metrics = token_losses(terms, alike[0].job.algorithm)
            scales = torch.tensor([batch.loss_scale for batch in alike]).repeat_interleave(torch.tensor(lengths))
            losses.append((loss_N * on_device(scales, self._model.device)).sum())
            of_slots = torch.stack(list(metrics.values())).split(lengths, 1)
            for batch, values_MN in zip(alike, of_slots, strict=True):
                sums.add(batch.job.slot, tuple(metrics), values_MN.sum(1))
        return torch.stack(losses).sum()

    def _logprobs(self, micro_batch: MicroBatch, hidden_TD: Tensor, jobs: Mapping[int, Job]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [N] of all response tokens of the micro-batch."""
        temperatures_N = torch.ones(len(micro_batch.targets_N))
        for piece in micro_batch.pieces:
            temperatures_N[piece.tokens] = jobs[piece.slot].sampling.temperature
        return token_logprobs(
            hidden_TD.index_select(0, micro_batch.rows_N),
            self._model.head_VD,
            micro_batch.targets_N,
            on_device(temperatures_N, self._model.device),
            self._model.tp_group,
            entropy_gradient=any(job.algorithm.entropy_coefficient > 0 for job in jobs.values()),
        )

    def _terms(
        self, micro_batch: MicroBatch, batches: Sequence[_Batch], logp_N: Tensor, entropy_N: Tensor
    ) -> TokenTerms:
        """Of the tokens of batches that are `_alike`."""
        of_slot = {batch.job.slot: batch for batch in batches}
        found = [(of_slot[piece.slot], piece.sample) for piece in micro_batch.pieces if piece.slot in of_slot]
        samples = [batch.job.samples[index] for batch, index in found]
        rollout = [logp for sample in samples for logp in sample.logp_rollout]
        lengths = torch.tensor([len(sample.response_tokens) for sample in samples])
        sample_N = torch.arange(len(samples)).repeat_interleave(lengths)
        scored = [batch.logp_trainer[index] for batch, index in found if batch.logp_trainer is not None]
        reference = [batch.logp_ref[index] for batch, index in found if batch.logp_ref is not None]
        advantages_B = torch.stack([batch.advantages_B[index] for batch, index in found])
        weights_B = torch.stack([batch.weights_B[index] for batch, index in found])
        device = self._model.device
        return TokenTerms(
            logp_N=logp_N,
            entropy_N=entropy_N,
            logp_rollout_N=on_device(rollout, device),
            # One step per batch: the policy before the step is the one of this very pass, but for dropout.
            logp_trainer_N=torch.cat(scored) if scored else logp_N.detach(),
            logp_ref_N=torch.cat(reference) if reference else None,
            advantage_N=on_device(advantages_B[sample_N], device),
            weight_N=on_device(weights_B[sample_N], device),
            sample_N=on_device(sample_N, device),
        )

    def _packed(self, samples: Mapping[int, Mapping[int, Sample]]) -> list[MicroBatch]:
        return pack(
            samples,
            max_tokens=self._max_tokens,
            device=self._model.device,
            dtype=self._model.dtype,
            copy=self._groups.dp.rank(),
            num_copies=self._groups.dp.size(),
        )

    def _metrics(self, jobs: Sequence[Job], sums: TokenSums, num_rows: int) -> dict[int, dict[str, float]]:
        """Sums of all ranks to what is reported: parts of the loss as they are, the rest as means over the tokens."""
        spoken = self._groups.sum_spoken_by_name(sums.read() | {None: {"train/packed_rows": float(num_rows)}})
        metrics = {}
        for job in jobs:
            num_tokens = sum(len(sample.response_tokens) for sample in job.samples)
            metrics[job.slot] = {
                name: value / (1 if name.startswith("loss/") else num_tokens)
                for name, value in spoken[job.slot].items()
            } | spoken[None]
        return metrics


def _alike(micro_batch: MicroBatch, batches: Mapping[int, _Batch]) -> list[list[_Batch]]:
    """The micro-batch's batches, those together that follow one another and have one objective.

    Theirs is worked out at once: it is a hundred small operations, which many slots would wait for one after the other.
    """
    own = [batches[span.slot] for span in micro_batch.spans]
    runs = groupby(own, lambda batch: (batch.job.algorithm, batch.logp_trainer is None))
    return [list(run) for _, run in runs]


def _spans(micro_batch: MicroBatch, batches: Mapping[int, _Batch]) -> tuple[Span, ...]:
    """The micro-batch's rows by slot, with this step's dropout."""
    seeds = {slot: batch.job.dropout_seed for slot, batch in batches.items()}
    return tuple(
        span if (seed := seeds[span.slot]) is None else replace(span, dropout_seed=f"{seed}/{micro_batch.number}")
        for span in micro_batch.spans
    )
