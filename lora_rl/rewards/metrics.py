"""What a graded batch looks like."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from lora_rl.algorithms.filters import uniform_group
from lora_rl.data.types import FinishReason, Sample

MIN_STD = 1e-8
"""A group whose reward deviation is at or below this has no gradient."""


def reward_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Metrics of graded samples. A sample without a reward counts as an error and in the lengths alone.

    `reward/total/*` over samples; `reward/<term>/mean` over the samples that the term scored; `reward/uniform_groups`,
    share of prompts whose rewards are all equal; `reward/errors`, a count; `response/tokens/mean`; `response/cut_off`,
    share of answers that ended at the token limit.
    """
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    metrics = {"reward/errors": float(sum("error" in sample.reward_details for sample in samples))}
    if rewards:
        metrics |= {
            "reward/total/mean": statistics.fmean(rewards),
            "reward/total/std": statistics.pstdev(rewards),
            "reward/total/min": min(rewards),
            "reward/total/max": max(rewards),
            "reward/uniform_groups": _uniform_groups(samples),
        }
    metrics |= {f"reward/{term}/mean": statistics.fmean(scores) for term, scores in _scores(samples).items()}
    if samples:
        metrics["response/tokens/mean"] = statistics.fmean(len(sample.response_tokens) for sample in samples)
        metrics["response/cut_off"] = statistics.fmean(s.finish_reason is FinishReason.LENGTH for s in samples)
    return metrics


def _uniform_groups(samples: Sequence[Sample]) -> float:
    groups = defaultdict(list)
    for sample in samples:
        if sample.reward is not None:
            groups[sample.prompt_id].append(sample.reward)
    return statistics.fmean(uniform_group(rewards, MIN_STD) for rewards in groups.values())


def _scores(samples: Sequence[Sample]) -> dict[str, list[float]]:
    scores = defaultdict(list)
    for sample in samples:
        for term, score in sample.reward_details.items():
            if isinstance(score, float):
                scores[term].append(score)
    return scores
