"""In which order actors end and start, without Ray."""

import asyncio

import pytest

from lora_rl.cluster import actors
from lora_rl.cluster.actors import Cast, find_or_start


async def test_actors_that_are_replaced_are_gone_before_others_start(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []

    async def ended(name: str) -> None:
        await asyncio.sleep(0)
        happened.append(f"{name} is gone")

    def start(cast: Cast, rank: int, seat: None) -> str:
        happened.append(f"rank {rank} starts")
        return cast.names[rank]

    monkeypatch.setattr(actors, "connect", lambda: None)
    monkeypatch.setattr(actors, "standing_names", lambda role: [f"{role}-0-other"])
    monkeypatch.setattr(actors, "find_actor", lambda name: name)
    monkeypatch.setattr(actors, "ended", ended)
    monkeypatch.setattr(actors, "_start", start)
    group = await find_or_start(Cast(role="trainer", host=object, arguments={}, identity={}))
    assert happened == ["trainer-0-other is gone", "rank 0 starts"]
    assert len(group.handles) == 1
