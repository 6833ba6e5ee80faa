"""Which samples can be trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from lora_rl.data.types import FinishReason, Sample
from lora_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """The samples of a batch that have something to train on, and how many they are."""

    samples: list[Sample]
    metrics: dict[str, float]


def trainable(samples: Sequence[Sample], *, vocab_size: int, source: str) -> Trainable:
    """The samples that are graded, finished and not empty; the others are counted.

    Raises DataError where none is left, and for tokens or rewards that cannot be; `source` names the samples.
    """
    kept = [sample for sample in samples if _has_something(sample)]
    if not kept:
        raise DataError(f"{source}: none of {len(samples)} samples has a reward and a response; roll out again")
    for sample in kept:
        tokens = [*sample.prompt_tokens, *sample.response_tokens]
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise DataError(
                f"{source}: sample {sample.id}: tokens {min(tokens)} to {max(tokens)} are not all in the vocabulary of "
                f"{vocab_size}; roll out with the trainer's base model"
            )
        if sample.reward is not None and not isfinite(sample.reward):
            raise DataError(f"{source}: sample {sample.id}: reward {sample.reward} is not finite; mend the grader")
    response_tokens = sum(len(sample.response_tokens) for sample in kept)
    return Trainable(
        samples=kept,
        metrics={
            "train/samples": float(len(kept)),
            "train/samples_left_out": float(len(samples) - len(kept)),
            "train/response_tokens": float(response_tokens),
            "train/tokens": float(response_tokens + sum(len(sample.prompt_tokens) for sample in kept)),
        },
    )


def _has_something(sample: Sample) -> bool:
    return sample.reward is not None and sample.finish_reason != FinishReason.ABORT and bool(sample.response_tokens)
