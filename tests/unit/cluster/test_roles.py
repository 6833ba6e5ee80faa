"""The order in which a run's actors are started before it."""

import asyncio
from pathlib import Path

import pytest

from lora_rl.cluster import roles
from lora_rl.config import load_config

TINY = Path(__file__).parents[3] / "examples" / "tiny.yaml"


@pytest.mark.parametrize(
    ("mode", "events"),
    [
        ("colocated", ["trainer", "trainer is up", "engines", "engines is up", "rollouter", "rollouter is up"]),
        (
            "disaggregated",
            ["engines", "trainer", "rollouter", "engines is up", "trainer is up", "rollouter is up"],
        ),
    ],
)
async def test_colocated_actors_start_one_after_the_other_and_others_at_once(monkeypatch, mode, events) -> None:
    seen = []

    def starting(name: str):
        async def start(*_: object) -> None:
            seen.append(name)
            await asyncio.sleep(0)
            seen.append(f"{name} is up")

        return start

    for name in ("engines", "trainer", "rollouter"):
        monkeypatch.setattr(roles, name, starting(name))
    await roles.start_all(load_config(TINY, [f"placement.mode={mode}"]), Path("model"))
    assert seen == events
