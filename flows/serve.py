"""The deployments of a workstation: `train`, one at a time on a cluster, and `iteration`."""

import asyncio

from prefect import aserve

from flows.iteration import iteration
from flows.train import train


async def serve_all() -> None:
    """Serves both until ended."""
    await aserve(
        await train.ato_deployment("train", concurrency_limit=1, description="Run or resume an RL run, by its name."),
        await iteration.ato_deployment("iteration", concurrency_limit=1, description="One iteration of a run."),
    )


if __name__ == "__main__":
    asyncio.run(serve_all())
