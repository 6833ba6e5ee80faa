"""Completions to groups of samples, and which groups are worth training."""

from collections.abc import Sequence

from lora_rl.algorithms.filters import uniform_group
from lora_rl.data.types import FinishReason, Prompt, Sample
from lora_rl.engine.types import Completion
from lora_rl.errors import EngineError
from lora_rl.store.refs import AdapterRef

Group = list[Sample]
"""The G samples of one prompt."""


def group_of(prompt: Prompt, completions: Sequence[Completion], adapter: AdapterRef) -> Group:
    """Samples of `prompt`, one for each completion.

    Raises EngineError where another version than `adapter` made one, or its tokens lack log-probabilities.
    """
    for completion in completions:
        if (completion.adapter_version, completion.adapter_digest) != (adapter.label, adapter.digest):
            raise EngineError(
                f"sample {completion.id}: made by {completion.adapter_version} ({completion.adapter_digest[:12]}), "
                f"not by {adapter.label} ({adapter.digest[:12]}); publish that version again"
            )
        if len(completion.tokens) != len(completion.logp):
            raise EngineError(
                f"sample {completion.id}: {len(completion.logp)} log-probabilities for {len(completion.tokens)} "
                "tokens; start the engine again"
            )
    return [
        Sample(
            id=completion.id,
            prompt_id=prompt.id,
            prompt_text=prompt.text,
            prompt_tokens=prompt.tokens,
            response_text=completion.text,
            response_tokens=completion.tokens,
            logp_rollout=completion.logp,
            finish_reason=completion.finish_reason,
            adapter_version=completion.adapter_version,
            adapter_digest=completion.adapter_digest,
            label=prompt.label,
            metadata=prompt.metadata,
        )
        for completion in completions
    ]


def complete(group: Group) -> bool:
    """Whether no sample of it was cut off by an abort."""
    return all(sample.finish_reason is not FinishReason.ABORT for sample in group)


def informative(group: Group, min_reward_std: float) -> bool:
    """Whether the rewards of a graded group differ enough to teach; samples without a reward do not count."""
    return not uniform_group([sample.reward for sample in group if sample.reward is not None], min_reward_std)
