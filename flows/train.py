"""A run, from its first uncommitted iteration to its last."""

import asyncio
import signal
from typing import Any

from prefect import flow
from prefect.exceptions import TerminationSignal
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run

from flows.iteration import iteration
from lora_rl.cluster.lease import lease
from lora_rl.errors import RunCancelled
from tasks import begin_run, finish_run, report_progress


@flow(name="train", flow_run_name="{run}", persist_result=False)
async def train(run: str, store: str, iterations: int) -> dict[str, Any]:
    """Runs or resumes `run` until `iterations` are committed, then promotes the adapter."""
    async with lease(run):
        first, history = await begin_run(run, store, iterations, flow_run.get_id())
        for n in range(first, iterations):
            commit: Any = await iteration(run, n, store)
            if n == len(history):
                history.append(commit)
                await report_progress(run, history, iterations)
        return await finish_run(run, store, iterations)


def train_to_end(run: str, store: str, iterations: int) -> dict[str, Any]:
    """`train` in this process. SIGTERM ends it as crashed in Prefect, with its actors' work cancelled.

    Raises RunCancelled where that happened.
    """
    try:
        return asyncio.run(_train_and_deliver_logs(run, store, iterations))
    except (TerminationSignal, asyncio.CancelledError):
        raise RunCancelled(
            f"run {run}: ended by SIGTERM; nothing committed is lost, the same command goes on"
        ) from None


async def _train_and_deliver_logs(run: str, store: str, iterations: int) -> dict[str, Any]:
    running = asyncio.create_task(train(run=run, store=store, iterations=iterations))
    # Prefect's own handler calls the one before it, which would end the process on the spot.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        return await running
    finally:
        await APILogHandler.aflush()
