"""Every metric there is: what it says, in which unit, and over what. An undeclared name fails, so that names keep their
meaning.

Names are `area/what/statistic`; the unit ends the name unless it is a ratio, a count or nats. `make docs` writes
docs/metrics.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """How an iteration's many values become the one reported."""

    MEAN = "mean"
    STD = "std"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    SHARE = "share"
    """Of those for which it holds, in [0, 1]."""
    LAST = "last"
    """There is one value: that at the end of the step."""


@dataclass(frozen=True)
class Metric:
    """A declared metric. `name` may hold one placeholder, `<term>`, for a part chosen by the user."""

    name: str
    unit: str
    """Empty for a number without one."""
    reduction: Reduction
    text: str

    def matches(self, name: str) -> bool:
        pattern = re.escape(self.name).replace(re.escape("<term>"), r"[^/]+")
        return re.fullmatch(pattern, name) is not None


MEAN, STD, MIN, MAX, SUM, SHARE, LAST = Reduction

METRICS = (
    Metric("reward/total/mean", "", MEAN, "Reward of the graded samples."),
    Metric("reward/total/std", "", STD, "Population deviation of their rewards."),
    Metric("reward/total/min", "", MIN, "Lowest reward."),
    Metric("reward/total/max", "", MAX, "Highest reward."),
    Metric("reward/<term>/mean", "", MEAN, "Score of one grader, before its weight, over the samples that it scored."),
    Metric(
        "drawn/<term>/mean",
        "",
        MEAN,
        "`reward/<term>/mean` over all that dynamic sampling drew, kept or not; `drawn/total/mean` is the reward's.",
    ),
    Metric("reward/uniform_groups", "", SHARE, "Groups whose rewards are all equal: they have no gradient."),
    Metric("reward/errors", "samples", SUM, "Samples whose grader raised, hung or died."),
    Metric("response/tokens/mean", "tokens", MEAN, "Length of a response."),
    Metric("response/cut_off", "", SHARE, "Responses that ended at the token limit."),
    Metric("rollout/samples", "samples", SUM, "Samples drawn, those of dropped and of surplus groups included."),
    Metric("rollout/rounds", "rounds", SUM, "Rounds of sampling; more than one where uniform groups were replaced."),
    Metric("rollout/groups_dropped", "groups", SUM, "Groups dropped for equal rewards."),
    Metric("rollout/prompts_left_out", "prompts", SUM, "Prompts left out because they are longer than allowed."),
    Metric("rollout/tokens_per_s", "tokens/s", MEAN, "Response tokens drawn a second, over all engines."),
    Metric("policy/clip_fraction", "", SHARE, "Response tokens on which the ratio's clip acted."),
    Metric("policy/ratio/mean", "", MEAN, "Probability ratio of new to old policy."),
    Metric("policy/entropy/mean", "nats", MEAN, "Entropy of the next-token distribution."),
    Metric("policy/logp/mean", "nats", MEAN, "Log-probability of response tokens under the trainer."),
    Metric("policy/grad_norm", "", LAST, "Norm of the adapter's gradient before clipping; absent where not finite."),
    Metric("policy/kl_reference/mean", "nats", MEAN, "Estimate of the divergence from the base model."),
    Metric("mismatch/logp_abs/mean", "nats", MEAN, "|logp trainer - logp engine| of response tokens."),
    Metric("mismatch/kl/mean", "nats", MEAN, "Estimate (k3) of the divergence of trainer from engine."),
    Metric("mismatch/icepop_masked", "", SHARE, "Response tokens without policy loss by `algorithm.icepop`."),
    Metric("mismatch/sequence_masked", "", SHARE, "The same by `algorithm.sequence_mask`: all tokens of a sample."),
    Metric("mismatch/geometric_masked", "", SHARE, "The same by `algorithm.geometric_mask`."),
    Metric("loss/<term>", "", SUM, "A part of the loss, aggregated as configured; `loss/total` is what was minimised."),
    Metric("train/lr", "", LAST, "Learning rate of the step."),
    Metric("train/steps", "steps", LAST, "Optimizer steps of the adapter so far."),
    Metric("train/stepped", "", LAST, "1 where the optimizer stepped, 0 where the gradient was zero or not finite."),
    Metric("train/skipped_in_a_row", "steps", LAST, "Steps skipped in a row, this one included."),
    Metric("train/samples", "samples", SUM, "Samples trained."),
    Metric("train/samples_left_out", "samples", SUM, "Samples without a reward, left out."),
    Metric("train/response_tokens", "tokens", SUM, "Response tokens trained."),
    Metric("train/tokens", "tokens", SUM, "Prompt and response tokens of these samples."),
    Metric("train/packed_rows", "rows", SUM, "Token rows of all micro-batches; a prompt that some share counts once."),
    Metric("train/tokens_per_s", "tokens/s", MEAN, "`train/tokens` over the step's seconds in the actor."),
    Metric("publish/export_s", "s", LAST, "From the trained state to weights in memory that engines can load."),
    Metric("publish/transfer_s", "s", MAX, "Hot load: finding or reading the adapter, digests; the slowest replica."),
    Metric("publish/load_s", "s", MAX, "Hot load: loading it into the engine; the slowest replica."),
    Metric(
        "publish/first_token_s", "s", MAX, "Hot load: from there to the version's first token; the slowest replica."
    ),
    Metric("publish/probe_s", "s", MAX, "Hot load: the whole probe, the first token included; the slowest replica."),
    Metric("publish/probe_error/max", "nats", MAX, "Mean |logp engine - logp trainer| on the probe, worst replica."),
    Metric("publish/probe_effect/max", "nats", MAX, "Change of a log-probability on the probe by the adapter."),
    Metric("time/<term>_s", "s", SUM, "A step as its task saw it, or a part of it in the actor."),
    Metric("memory/peak_gib", "GiB", MAX, "Memory of the trainer's first rank at its peak."),
)


def check_declared(names: Iterable[str]) -> None:
    """Raises KeyError that lists every name without a declaration."""
    unknown = [name for name in names if not any(metric.matches(name) for metric in METRICS)]
    if unknown:
        raise KeyError(f"metrics not declared in lora_rl/tracking/metrics.py: {', '.join(sorted(unknown))}")


def metrics_page() -> str:
    """docs/metrics.md."""
    rows = "\n".join(
        f"| `{metric.name}` | {metric.unit} | {metric.reduction} | {_cell(metric.text)} |" for metric in METRICS
    )
    return (
        "# Metrics\n\n"
        "Made from `lora_rl/tracking/metrics.py` by `make docs`. Values are those of one iteration; they stand in its "
        "COMMIT record, in `lora-rl status --json`, and in Prefect's artifacts.\n\n"
        f"| name | unit | reduced by | what it says |\n| --- | --- | --- | --- |\n{rows}\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
