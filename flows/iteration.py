"""One iteration of a run."""

from typing import Any

from prefect import flow

from tasks import (
    commit_iteration,
    export_adapter,
    exported,
    hot_load,
    open_iteration,
    report_iteration,
    reward,
    rollout,
    train_step,
)


@flow(name="iteration", flow_run_name="{run}/it{n}", persist_result=False)
async def iteration(run: str, n: int, store: str) -> dict[str, Any]:
    """Sample under the current adapter, grade, train, export, serve the new one. Committed steps are reused."""
    at = await open_iteration(run, n, store)
    await hot_load(at, at.adapter)
    samples = await rollout(at)
    scored = await reward(at, samples)
    trained = await train_step(at, scored)
    adapter = exported(at, await export_adapter(at, trained))
    await hot_load(at, adapter)
    commit = await commit_iteration(at, adapter)
    await report_iteration(at, commit, scored)
    return commit
