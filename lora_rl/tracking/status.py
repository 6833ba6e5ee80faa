"""A run in one document, read from its records alone."""

from typing import Any

from lora_rl.store import STEPS, AdapterRef, ArtifactStore, RunRecords
from lora_rl.tracking.summary import mean_score


def run_status(artifacts: ArtifactStore, records: RunRecords, run: str) -> dict[str, Any]:
    """What the run has done: every committed iteration, the one under way, and the adapter it has reached.

    Step states: `committed`, `begun` (executing, or its process died) and `pending`.
    """
    document = records.run_document() or {}
    done = records.first_uncommitted()
    commits = records.iteration_commits(done)
    iterations = [
        {
            "it": commit["it"],
            "reward_mean": commit["reward_mean"],
            "metrics": commit["metrics"],
            "steps": commit["steps"],
        }
        for commit in commits
    ]
    under_way = iteration_under_way(records, done)
    if any(step["state"] != "pending" for step in under_way["steps"].values()):
        iterations.append(under_way)
    return {
        "run": run,
        "config_sha256": document["config_sha256"],
        "iterations": iterations,
        "adapter": _adapter(artifacts, records.iteration_commit(done - 1), done - 1),
    }


def iteration_under_way(records: RunRecords, it: int) -> dict[str, Any]:
    """The state of an iteration that is not committed. Costs a few reads, however long the run is."""
    steps, metrics = {}, {}
    for step in STEPS:
        record = records.step_record(it, step)
        executions = records.attempts(it, step)
        state = "committed" if record else "begun" if executions else "pending"
        steps[step] = {"state": state, "seconds": record.seconds if record else None, "executions": executions}
        metrics |= record.metrics if record else {}
    return {"it": it, "reward_mean": mean_score(metrics), "metrics": metrics, "steps": steps}


def _adapter(artifacts: ArtifactStore, commit: dict[str, Any] | None, it: int) -> dict[str, Any] | None:
    if commit is None:
        return None
    adapter = AdapterRef.from_json(commit["adapter"])
    return {"sha256": adapter.digest, "uri": artifacts.uri(adapter.weights.key), "iteration": it}
