"""The deployments of a workstation: `train` and `nightly`, one at a time on a cluster, and `iteration`."""

import asyncio

from prefect import aserve

from flows.iteration import iteration
from flows.nightly import nightly
from flows.silence import watch_for_silence
from flows.train import train


async def serve_all() -> None:
    """Serves them until ended."""
    await watch_for_silence()
    await aserve(
        await train.ato_deployment("train", concurrency_limit=1, description="Run or resume an RL run, by its name."),
        await nightly.ato_deployment("nightly", concurrency_limit=1, description="A new run of a config, by the date."),
        await iteration.ato_deployment("iteration", concurrency_limit=1, description="One iteration of a run."),
    )


if __name__ == "__main__":
    asyncio.run(serve_all())
