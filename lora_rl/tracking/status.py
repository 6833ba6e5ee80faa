"""A run in one document, read from its records alone."""

from datetime import UTC, datetime
from typing import Any

from lora_rl.store import STEPS, AdapterRef, ArtifactStore, RunRecords, promoted_uri
from lora_rl.tracking.summary import mean_score

QUIET_S = 600.0
"""Records cannot tell a long step from a driver that was killed: a run that began nothing for so long has stopped."""


def run_names(artifacts: ArtifactStore) -> list[str]:
    """The runs of the store."""
    return sorted({key.split("/")[1] for key in artifacts.list("runs/") if key.count("/") == 2})


def runs_overview(artifacts: ArtifactStore) -> list[dict[str, Any]]:
    """For each run of the store: its progress, and the reward of its last iteration (null before the first)."""
    runs = []
    for run in run_names(artifacts):
        records = RunRecords(artifacts, run)
        done = records.first_uncommitted()
        last = records.iteration_commit(done - 1) if done else None
        reward = last["reward_mean"] if last else None
        runs.append({"run": run, **_progress(records, done), "reward_mean": reward})
    return runs


def run_status(artifacts: ArtifactStore, records: RunRecords, run: str) -> dict[str, Any]:
    """What the run has done: every committed iteration, the one under way, and the adapter it has reached.

    `state` is `done`, `running` or `stopped`, as far as records tell. Step states: `committed`, `begun` (executing, or
    its process died) and `pending`.
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
        **_progress(records, done),
        "iterations": iterations,
        "adapter": _adapter(artifacts, run, records.iteration_commit(done - 1), done - 1),
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


def _progress(records: RunRecords, done: int) -> dict[str, Any]:
    wanted, updated = records.iterations_wanted(), _updated(records, done)
    quiet_s = (datetime.now(UTC) - datetime.fromisoformat(updated)).total_seconds()
    return {
        "state": "done" if done >= wanted else "running" if quiet_s < QUIET_S else "stopped",
        "iterations_done": done,
        "iterations_wanted": wanted,
        "updated": updated,
    }


def _updated(records: RunRecords, done: int) -> str:
    """When the run last began a step or committed an iteration. Times of one form: the last is the largest."""
    document, commit = records.run_document() or {}, records.iteration_commit(done - 1) or {}
    begun = [time for step in STEPS for time in records.begun(done, step)]
    return max([document["created"], *begun, *([commit["committed"]] if commit else [])])


def _adapter(artifacts: ArtifactStore, run: str, commit: dict[str, Any] | None, it: int) -> dict[str, Any] | None:
    if commit is None:
        return None
    adapter = AdapterRef.from_json(commit["adapter"])
    return {
        "sha256": adapter.digest,
        "uri": artifacts.uri(adapter.weights.key),
        "directory": promoted_uri(artifacts, run, adapter),
        "iteration": it,
    }
