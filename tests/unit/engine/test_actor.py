"""Sleep and wake of the engine actor over a server that fails where a real one could not be made to."""

import asyncio
from typing import Any

import pytest

from lora_rl.config import EngineConfig, SamplingConfig, StoreConfig
from lora_rl.engine import Probe
from lora_rl.engine.actor import EngineActor
from lora_rl.engine.versions import Version
from lora_rl.errors import EngineDied, EngineError
from tests.builders import make_adapter_ref

PROBE = Probe(prompt_tokens=[1], token_ids=[2], logp=[-1.0], logp_base=[-1.5])


class Server:
    """Notes its calls, and raises `failing`'s error in the call of that name."""

    dead = False

    def __init__(self, **failing: Exception) -> None:
        self.calls: list[str] = []
        self.failing = failing

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]

    async def sleep(self) -> None:
        self._called("sleep")

    async def wake(self) -> None:
        self._called("wake")

    async def prove(self, ref: Any, probe: Probe, lora_id: int) -> None:
        self._called(f"prove {ref.label}")

    async def unload(self, version: Version) -> None:
        self._called(f"unload {version.label}")

    def shutdown(self) -> None:
        self._called("shutdown")


def engine_over(server: Server) -> EngineActor:
    """An engine that serves a@1."""
    engine = EngineActor(model_path="m", dtype="float32", engine=EngineConfig(), max_rank=8, slots=1, sleeps=True)
    engine._server = server  # pyright: ignore[reportAttributeAccessIssue]
    engine._versions.add(make_adapter_ref("a", 1), PROBE, engine._versions.new_id())
    return engine


async def test_each_version_is_proven_again_on_wake() -> None:
    server = Server()
    engine = engine_over(server)
    assert [await engine.sleep(), await engine.sleep()] == ["slept", "already_asleep"]
    assert [await engine.wake(), await engine.wake()] == ["woke", "already_awake"]
    assert server.calls == ["sleep", "wake", "prove a@1"]
    assert list(await engine.serving()) == ["a@1"]


async def test_a_sleeping_engine_takes_no_requests() -> None:
    engine = engine_over(Server())
    await engine.sleep()
    with pytest.raises(EngineError, match="asleep; wake it first"):
        await engine.generate(version="a@1", requests=[], sampling=SamplingConfig(), batch_id="b")


@pytest.mark.parametrize(
    "failing", [{"wake": RuntimeError("out of memory")}, {"prove a@1": EngineError("probe disagrees")}]
)
async def test_an_engine_that_does_not_wake_as_it_slept_is_ended_and_serves_nothing(failing: dict) -> None:
    server = Server(**failing)
    engine = engine_over(server)
    await engine.sleep()
    with pytest.raises(EngineDied, match=r"did not wake as it slept \((out of memory|probe disagrees)\)"):
        await engine.wake()
    assert server.calls[-1] == "shutdown"
    assert await engine.serving() == {}
    assert await engine.sleep() == "not_running"


async def test_an_engine_that_does_not_run_has_nothing_to_give_back() -> None:
    engine = EngineActor(model_path="m", dtype="float32", engine=EngineConfig(), max_rank=8, slots=1)
    assert await engine.sleep() == "not_running"
    assert await engine.wake() == "already_awake"


async def test_nothing_begins_while_the_engine_goes_to_sleep() -> None:
    server = Server()
    engine = engine_over(server)
    going, gone = asyncio.Event(), asyncio.Event()

    async def sleep() -> None:
        going.set()
        await gone.wait()

    server.sleep = sleep
    sleeping = asyncio.create_task(engine.sleep())
    await going.wait()
    with pytest.raises(EngineError, match="asleep; wake it first"):
        await engine.generate(version="a@1", requests=[], sampling=SamplingConfig(), batch_id="b")
    late = [
        asyncio.create_task(engine.publish(store=StoreConfig(), adapter=make_adapter_ref("a", 2))),
        asyncio.create_task(engine.stage(label="a@2", directory="/")),
    ]
    await asyncio.sleep(0)
    gone.set()
    assert await sleeping == "slept"
    errors = await asyncio.gather(*late, return_exceptions=True)
    assert [str(error) for error in errors] == ["engine: asleep; wake it first"] * 2


async def test_an_engine_that_could_not_sleep_is_awake() -> None:
    engine = engine_over(Server(sleep=RuntimeError("level")))
    with pytest.raises(RuntimeError, match="level"):
        await engine.sleep()
    assert await engine.wake() == "already_awake"


@pytest.mark.parametrize("first", [EngineError("busy"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_versions_that_could_not_be_unloaded_are_unloaded_later(first: BaseException) -> None:
    server = Server()
    engine = engine_over(server)
    for version in (2, 3):
        engine._versions.add(make_adapter_ref("a", version), PROBE, engine._versions.new_id())
    failures = [first]

    async def unload(version: Version) -> None:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        server.calls.append(f"unload {version.label}")

    server.unload = unload
    with pytest.raises(type(first)):
        await engine.retire("a")
    assert server.calls == []
    await asyncio.gather(engine.retire("a"), engine.retire("a"))
    assert server.calls == ["unload a@1", "unload a@2", "unload a@3"]
    assert engine._versions.has_room


async def test_a_start_that_fails_says_why_and_where_it_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: EngineActor) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    monkeypatch.setattr(EngineActor, "_start_vllm", fail)
    engine = EngineActor(model_path="m", dtype="float32", engine=EngineConfig(), max_rank=8, slots=1)
    with pytest.raises(EngineError, match=r"vLLM did not start for m: Engine core(?s:.*)\nsee \S+"):
        await engine.start()
    assert await engine.sleep() == "not_running"
