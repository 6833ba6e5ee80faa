"""What people look at in the Prefect UI: progress, reward curve, samples and the iteration in numbers."""

import asyncio
import base64
from typing import Any

from prefect.artifacts import acreate_image_artifact, acreate_markdown_artifact

from lora_rl.store import StepRecord
from lora_rl.tracking import iteration_markdown, reward_curve_png
from tasks.context import Iteration

CURVE_EVERY = 5
"""Iterations between two drawings of the reward curve."""


def artifact_key(run: str, what: str) -> str:
    """An artifact's key; Prefect takes lowercase letters, digits and dashes."""
    return "".join(letter if letter.isalnum() else "-" for letter in f"{run}-{what}".lower())


async def report_iteration(at: Iteration, commit: dict[str, Any], scored: StepRecord) -> None:
    """Artifacts of one iteration: its numbers, and some of its samples."""
    await acreate_markdown_artifact(
        f"{iteration_markdown(at.run, commit)}\n\n{scored.values['preview']}",
        key=artifact_key(at.run, "iteration"),
        description=f"{at.run}, iteration {at.n}",
    )


async def report_progress(run: str, history: list[dict[str, Any]], iterations: int) -> None:
    """Artifacts of the run: the reward curve so far."""
    done = len(history)
    if done % CURVE_EVERY and done < iterations:
        return
    png = await asyncio.to_thread(
        reward_curve_png, [commit["it"] for commit in history], [commit["reward_mean"] for commit in history], title=run
    )
    await acreate_image_artifact(
        image_url="data:image/png;base64," + base64.b64encode(png).decode(),
        key=artifact_key(run, "reward-curve"),
        description=f"{run}: reward after {done} of {iterations} iterations",
    )
