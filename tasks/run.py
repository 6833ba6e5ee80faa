"""Where a run begins, what an iteration commits, and where a run ends."""

import asyncio
from typing import Any

from prefect import get_run_logger

from lora_rl.config.run import changes_of_result
from lora_rl.errors import CommitConflict, ConfigError
from lora_rl.store import STEPS, AdapterRef, promote_adapter
from lora_rl.tracking import check_declared, iteration_line, mean_score
from tasks.context import START, Iteration, Start, open_iteration, open_start
from tasks.export_adapter import export_adapter, exported, new_adapter


async def begin_run(run: str, store: str, iterations: int, flow_run_id: str | None) -> tuple[int, list[dict[str, Any]]]:
    """The iteration to begin with and all commits there are; makes the adapter that a fresh run starts from.

    Raises ConfigError where more are committed: an older adapter would replace the one promoted.
    The first iteration is pinned to the flow run: on a retry from the UI Prefect matches subflows by their position.
    """
    at = await open_start(run, store)
    done = await asyncio.to_thread(at.records.first_uncommitted)
    if iterations < done:
        raise ConfigError(f"iterations: {iterations}, but {done} of {run} are committed; give {done} or more")
    first = done if flow_run_id is None else await asyncio.to_thread(at.records.pin_start, flow_run_id, done)
    if done == 0:
        await commit_start(at)
    return first, await asyncio.to_thread(at.records.iteration_commits, done)


async def commit_start(at: Start) -> dict[str, Any]:
    """The state and adapter, version 0, that the first iteration starts from, and its place in the data."""
    if (committed := await asyncio.to_thread(at.records.iteration_commit, START)) is not None:
        return committed
    origin = await asyncio.to_thread(at.records.origin)
    made = await new_adapter(at, origin)
    adapter = exported(at, await export_adapter(at, made))
    document = {
        "state": made.outputs["state"],
        "adapter": adapter.to_json(),
        "position": origin["position"] if origin else 0,
    }
    return await asyncio.to_thread(_commit, at, document)


async def committed_iteration(at: Iteration) -> dict[str, Any] | None:
    """The iteration's COMMIT, if there is one."""
    return await asyncio.to_thread(at.records.iteration_commit, at.n)


async def commit_iteration(at: Iteration, adapter: AdapterRef) -> dict[str, Any]:
    """The iteration's COMMIT: refs that the next one starts from, and the numbers of all steps."""
    commit = await asyncio.to_thread(_commit_iteration, at, adapter)
    get_run_logger().info("%s", iteration_line(at.run, commit))
    return commit


def _commit_iteration(at: Iteration, adapter: AdapterRef) -> dict[str, Any]:
    steps = {step: record for step in STEPS if (record := at.records.step_record(at.n, step))}
    executions = {step: at.records.attempts(at.n, step) for step in STEPS}
    metrics: dict[str, float] = {}
    for step, record in steps.items():
        metrics |= record.metrics
        metrics[f"time/{step}_s"] = record.seconds
    check_declared(metrics)
    document = {
        "it": at.n,
        "state": steps["train_step"].outputs["state"],
        "adapter": adapter.to_json(),
        "position": steps["rollout"].values["position"],
        "samples": steps["reward"].outputs["samples"],
        "reward_mean": mean_score(metrics),
        "metrics": metrics,
        "steps": {
            step: {"state": "committed", "seconds": record.seconds, "executions": executions[step]}
            for step, record in steps.items()
        },
    }
    return _commit(at, document)


def _commit(at: Start, document: dict[str, Any]) -> dict[str, Any]:
    if changed := changes_of_result(at.records.config(), at.config):
        raise CommitConflict(
            f"{at}: another command gave the run another config meanwhile ({'; '.join(changed)}); "
            "give one of the two commands again"
        )
    return at.records.commit_iteration(at.n, document)


async def finish_run(run: str, store: str, iterations: int) -> dict[str, Any]:
    """Promotes the last adapter to a PEFT directory in the store, and says where it lies."""
    at = await open_iteration(run, iterations, store)
    uri = await asyncio.to_thread(promote_adapter, at.artifacts, run, at.adapter)
    get_run_logger().info("%s: adapter %s at %s", run, at.adapter.label, uri)
    return {"run": run, "iterations": iterations, "adapter": at.adapter.to_json(), "uri": uri}
