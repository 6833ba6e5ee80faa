"""An iteration in a line, and as a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from lora_rl.engine import PublishOutcome, PublishReply
from lora_rl.store import STEPS
from lora_rl.tracking.markdown import cell

STAGES = ("transfer", "load", "first_token", "probe")
"""Of a hot load, in their order."""


def iteration_line(run: str, commit: dict[str, Any]) -> str:
    """The iteration's numbers in fixed columns, for logs."""
    metrics, steps = commit["metrics"], commit["steps"]
    seconds = " ".join(f"{step} {steps[step]['seconds']:6.1f}s" for step in STEPS)
    mismatch = metrics.get("mismatch/logp_abs/mean", float("nan"))
    return f"{run} it {commit['it']:4d}  reward {commit['reward_mean']:7.3f}  |Δlogp| {float(mismatch):.4f}  {seconds}"


def iteration_markdown(run: str, commit: dict[str, Any]) -> str:
    """Steps and metrics as two tables."""
    steps = "\n".join(
        f"| {name} | {step['seconds']:.2f} | {step['executions']} |" for name, step in commit["steps"].items()
    )
    metrics = "\n".join(f"| {cell(name)} | {float(value):.5g} |" for name, value in sorted(commit["metrics"].items()))
    adapter = commit["adapter"]
    return (
        f"## {cell(run)}, iteration {commit['it']}\n\n"
        f"Adapter `{adapter['name']}@{adapter['version']}`, weights `{adapter['weights']['sha256'][:12]}`.\n\n"
        f"| step | seconds | executions |\n| --- | ---: | ---: |\n{steps}\n\n"
        f"| metric | value |\n| --- | ---: |\n{metrics}"
    )


def mean_score(metrics: Mapping[str, Any], term: str = "total") -> Any:
    """Mean of the reward, or of one of its terms, over all groups drawn: those that dynamic sampling dropped count too.

    None where nothing has it.
    """
    return metrics.get(f"drawn/{term}/mean", metrics.get(f"reward/{term}/mean"))


def publish_metrics(replies: Sequence[PublishReply]) -> dict[str, float]:
    """The slowest replica by stage, and the largest error of the probe, over the replicas that loaded the adapter."""
    loaded = [reply for reply in replies if reply.outcome is PublishOutcome.LOADED]
    if not loaded:
        return {}
    stages = {f"publish/{stage}_s": max(reply.seconds[stage] for reply in loaded) for stage in STAGES}
    return stages | {
        "publish/probe_error/max": max(reply.probe_error for reply in loaded),
        "publish/probe_effect/max": max(reply.probe_effect for reply in loaded),
    }
