"""What people look at in the Prefect UI: progress, reward curve, samples and the iteration in numbers."""

import asyncio
import base64
from typing import Any

from prefect.artifacts import acreate_image_artifact, acreate_markdown_artifact

from lora_rl.store import StepRecord
from lora_rl.tracking import iteration_markdown, reward_curve_png, timeline_png
from tasks.context import Iteration

PICTURES_EVERY = 5
"""Iterations between two drawings."""


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
    """Artifacts of the run: the reward curve so far, and where the last iterations spent their time."""
    done = len(history)
    if done % PICTURES_EVERY and done < iterations:
        return
    its, rewards = [commit["it"] for commit in history], [commit["reward_mean"] for commit in history]
    curve = await asyncio.to_thread(reward_curve_png, its, rewards, title=run)
    await _show(run, "reward-curve", curve, f"{run}: reward after {done} of {iterations} iterations")
    timeline = await asyncio.to_thread(timeline_png, history, title=run)
    await _show(run, "timeline", timeline, f"{run}: seconds by step in the last iterations")


async def _show(run: str, what: str, png: bytes, description: str) -> None:
    image = "data:image/png;base64," + base64.b64encode(png).decode()
    await acreate_image_artifact(image_url=image, key=artifact_key(run, what), description=description)
