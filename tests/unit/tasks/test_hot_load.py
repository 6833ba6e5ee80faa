"""What `serve` makes of replicas that fail, with plain objects in the place of engines."""

import asyncio
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger
from ray.exceptions import ActorUnavailableError

from lora_rl.cluster.actors import ActorGroup
from lora_rl.config import DeadlineConfig
from lora_rl.engine import PublishOutcome, PublishReply
from lora_rl.errors import DigestMismatch, EngineDied, EngineError
from tasks.context import Iteration
from tasks.hot_load import serve, stage

HANDED_OVER = "/nowhere"


class Engine:
    """A replica whose publish raises `error`, where there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.published = 0
        self.staged: list[str] = []

    async def serving(self) -> dict[str, str]:
        return {}

    async def drain_logs(self, after: int) -> list[tuple[int, int, str]]:
        return []

    async def publish(self, *, adapter: Any, **_: Any) -> PublishReply:
        self.published += 1
        if self.error:
            raise self.error
        return PublishReply(
            outcome=PublishOutcome.LOADED,
            version=adapter.label,
            digest=adapter.digest,
            seconds={},
            probe_error=0.0,
            probe_effect=0.0,
        )

    async def stage(self, *, label: str, directory: str) -> str:
        if self.error:
            raise self.error
        self.staged.append(label)
        return "staged"


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Engines that `serve` finds; tests fill the list."""
    found: list[Engine] = []

    async def call(method: Any, *, deadline_s: float, **arguments: Any) -> Any:
        return await method(**arguments)

    async def engines(*_: Any) -> ActorGroup:
        return ActorGroup("engine", found)  # pyright: ignore[reportArgumentType]

    module = sys.modules[serve.__module__]
    monkeypatch.setattr(module, "call", call)
    monkeypatch.setattr("lora_rl.cluster.actors.call", call)
    monkeypatch.setattr(module, "roles", SimpleNamespace(engines=engines))
    return found


@pytest.mark.parametrize("error", [EngineError("probe disagrees"), DigestMismatch("x: changed"), EngineDied("dead")])
async def test_the_replica_that_fails_is_named_after_all_others_have_answered(
    at: Iteration, replicas: list[Engine], error: Exception
) -> None:
    replicas += [Engine(), Engine(error), Engine()]
    with disable_run_logger(), pytest.raises(type(error), match=f"^engine-1: {error}") as caught:
        await serve(at, at.adapter)
    assert type(caught.value) is type(error)
    assert [engine.published for engine in replicas] == [1, 1, 1]


async def test_every_replica_is_published_to(at: Iteration, replicas: list[Engine]) -> None:
    replicas += [Engine(), Engine()]
    with disable_run_logger():
        _, replies = await serve(at, at.adapter)
    assert [reply.version for reply in replies] == [at.adapter.label] * 2


@pytest.mark.parametrize("error", [EngineError("no room"), ActorUnavailableError("gone", None), ValueError("of vLLM")])
async def test_a_failure_to_stage_is_no_failure_of_the_export(
    at: Iteration, replicas: list[Engine], error: Exception
) -> None:
    replicas += [Engine(), Engine(error)]
    with disable_run_logger():
        await stage(at, "default@2", HANDED_OVER)
    assert replicas[0].staged == ["default@2"]


async def test_staging_ends_at_its_deadline(
    at: Iteration, replicas: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(**_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    replicas += [Engine()]
    monkeypatch.setattr(replicas[0], "stage", hangs)
    impatient = at.config.model_copy(update={"deadlines": DeadlineConfig(publish_s=0.01)})
    with disable_run_logger():
        await stage(replace(at, config=impatient), "default@2", HANDED_OVER)


async def test_nothing_is_staged_where_nothing_is_handed_over(at: Iteration, replicas: list[Engine]) -> None:
    replicas += [Engine()]
    await stage(at, "default@2", None)
    assert replicas[0].staged == []


async def test_nothing_is_staged_where_the_engine_sleeps_meanwhile(at: Iteration, replicas: list[Engine]) -> None:
    replicas += [Engine()]
    placement = at.config.placement.model_copy(update={"mode": "colocated"})
    colocated = replace(at, config=at.config.model_copy(update={"placement": placement}))
    with disable_run_logger():
        await stage(colocated, "default@2", HANDED_OVER)
    assert replicas[0].staged == []
