"""One iteration of a run."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from lora_rl.cluster.lease import lease
from tasks import (
    REUSED,
    commit_iteration,
    committed_iteration,
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
async def iteration(run: str, n: int, store: str) -> dict[str, Any] | State[dict[str, Any]]:
    """Sample under the current adapter, grade, train, export, serve the new one. What is committed is reused."""
    async with lease(run):
        at = await open_iteration(run, n, store)
        if (done := await committed_iteration(at)) is not None:
            return Completed(name=REUSED, message=f"committed {done['committed']}", data=done)
        await hot_load(at, at.adapter)
        samples = await rollout(at)
        scored = await reward(at, samples)
        trained = await train_step(at, scored)
        adapter = exported(at, await export_adapter(at, trained))
        await hot_load(at, adapter)
        commit = await commit_iteration(at, adapter)
        await report_iteration(at, commit, scored)
        return commit
