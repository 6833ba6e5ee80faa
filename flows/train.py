"""A run, from its first uncommitted iteration to its last."""

from typing import Any

from prefect import flow
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run

from flows.iteration import iteration
from lora_rl.cluster.lease import lease
from tasks import begin_run, finish_run, report_progress


@flow(name="train", flow_run_name="{run}", persist_result=False)
async def train(run: str, store: str, iterations: int) -> dict[str, Any]:
    """Runs or resumes `run` until `iterations` are committed, then promotes the adapter."""
    async with lease(run):
        first, history = await begin_run(run, store, iterations, flow_run.get_id())
        for n in range(first, iterations):
            history.append(await iteration(run, n, store))
            await report_progress(run, history, iterations)
        return await finish_run(run, store, iterations)


async def train_to_end(run: str, store: str, iterations: int) -> dict[str, Any]:
    """`train`, with its log delivered when this returns: the server may end right after."""
    try:
        return await train(run=run, store=store, iterations=iterations)
    finally:
        await APILogHandler.aflush()
