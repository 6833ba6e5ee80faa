"""Every metric there is: what it says, and in which unit. An undeclared name fails, so that names keep their meaning.

Names are `area/what/statistic`; the unit ends the name unless it is a ratio. `make docs` writes docs/metrics.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A declared metric. `name` may hold one placeholder, `<term>`, for a part chosen by the user."""

    name: str
    text: str

    def matches(self, name: str) -> bool:
        pattern = re.escape(self.name).replace(re.escape("<term>"), r"[^/]+")
        return re.fullmatch(pattern, name) is not None


METRICS = (
    Metric(name="reward/total/mean", text="Mean reward of the graded samples."),
    Metric(name="reward/total/std", text="Population deviation of their rewards."),
    Metric(name="reward/total/min", text="Lowest reward."),
    Metric(name="reward/total/max", text="Highest reward."),
    Metric(name="reward/<term>/mean", text="Mean score of one grader, before its weight."),
    Metric(name="reward/uniform_groups", text="Share of groups whose rewards are all equal: they have no gradient."),
    Metric(name="reward/errors", text="Samples whose grader raised, hung or died."),
    Metric(name="response/tokens/mean", text="Mean number of tokens of a response."),
    Metric(name="response/cut_off", text="Share of responses that ended at the token limit."),
    Metric(name="rollout/samples", text="Samples drawn."),
    Metric(name="rollout/rounds", text="Rounds of sampling; more than one where uniform groups were replaced."),
    Metric(name="rollout/groups_dropped", text="Groups dropped for equal rewards."),
    Metric(name="rollout/prompts_left_out", text="Prompts left out because they are longer than allowed."),
    Metric(name="rollout/tokens_per_s", text="Response tokens drawn a second, over all engines."),
    Metric(name="policy/clip_fraction", text="Share of response tokens on which the ratio's clip acted."),
    Metric(name="policy/ratio/mean", text="Mean probability ratio of new to old policy."),
    Metric(name="policy/entropy/mean", text="Mean entropy of the next-token distribution, in nats."),
    Metric(name="policy/logp/mean", text="Mean log-probability of response tokens under the trainer."),
    Metric(name="policy/grad_norm", text="Norm of the adapter's gradient before clipping; 0 where it was not finite."),
    Metric(name="policy/kl_reference/mean", text="Mean estimate of the divergence from the base model, in nats."),
    Metric(name="mismatch/logp_abs/mean", text="Mean |logp trainer - logp engine| of response tokens."),
    Metric(name="mismatch/kl/mean", text="Estimate (k3) of the divergence of trainer from engine, in nats."),
    Metric(
        name="loss/<term>", text="A part of the loss, aggregated as configured; `loss/total` is what was minimised."
    ),
    Metric(name="train/lr", text="Learning rate of the step."),
    Metric(name="train/steps", text="Optimizer steps of the adapter so far."),
    Metric(name="train/stepped", text="1 where the optimizer stepped, 0 where the gradient was not finite."),
    Metric(name="train/skipped_in_a_row", text="Steps skipped in a row, this one included."),
    Metric(name="train/samples", text="Samples trained."),
    Metric(name="train/samples_left_out", text="Samples without a reward, left out."),
    Metric(name="train/response_tokens", text="Response tokens trained."),
    Metric(name="train/tokens", text="Prompt and response tokens of these samples."),
    Metric(name="train/packed_rows", text="Packed micro-batches of the step."),
    Metric(name="train/tokens_per_s", text="`train/tokens` over the step's seconds in the actor."),
    Metric(name="publish/read_s", text="Hot load: reading the adapter from the store; the slowest replica."),
    Metric(name="publish/load_s", text="Hot load: loading it into the engine; the slowest replica."),
    Metric(name="publish/probe_s", text="Hot load: the probe; the slowest replica."),
    Metric(name="publish/probe_error/max", text="Largest |logp engine - logp trainer| on the probe."),
    Metric(name="publish/probe_effect/max", text="Largest change of a log-probability on the probe by the adapter."),
    Metric(name="time/<term>_s", text="Seconds of a step as its task saw it, or of a part of it in the actor."),
    Metric(name="memory/peak_gib", text="Peak memory of the trainer's first rank."),
)


def check_declared(names: Iterable[str]) -> None:
    """Raises KeyError that lists every name without a declaration."""
    unknown = [name for name in names if not any(metric.matches(name) for metric in METRICS)]
    if unknown:
        raise KeyError(f"metrics not declared in lora_rl/tracking/metrics.py: {', '.join(sorted(unknown))}")


def metrics_page() -> str:
    """docs/metrics.md."""
    rows = "\n".join(f"| `{metric.name}` | {metric.text} |" for metric in METRICS)
    return (
        "# Metrics\n\n"
        "Made from `lora_rl/tracking/metrics.py` by `make docs`. Values are those of one iteration; they stand in its "
        "COMMIT record, in `lora-rl status --json`, and in Prefect's artifacts.\n\n"
        f"| name | what it says |\n| --- | --- |\n{rows}\n"
    )
