"""The same requests under the same version give the same bits, whatever ran before or runs beside."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lora_rl.config import StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.store import AdapterRef
from tests.integration.engine.batches import answers, contents, make_requests
from tests.peft_adapters import PeftExporter
from tests.processes import running, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

SIZE = 56
"""Requests: more than three times the 16 that decode at a time."""


@pytest.fixture(scope="module")
def adapter(exporter: PeftExporter) -> AdapterRef:
    return exporter.export("bits", 1, seed=11)


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Two processes that take all the time they get."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.fixture
def fresh_engine(model_path: Path, store: StoreConfig, adapter: AdapterRef) -> Iterator[subprocess.Popen[str]]:
    arguments = [str(model_path), store.uri, json.dumps(adapter.to_json()), str(SIZE)]
    command = [sys.executable, "-m", "tests.integration.engine.fresh_engine", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


async def reference(engine: EngineActor, store: StoreConfig, adapter: AdapterRef) -> list[dict[str, Any]]:
    await engine.publish(store=store, adapter=adapter)
    return contents(await answers(engine, adapter.label, make_requests(SIZE)))


async def test_a_batch_repeats_after_another_batch(engine: EngineActor, store: StoreConfig, adapter: AdapterRef):
    first = await reference(engine, store, adapter)
    await answers(engine, adapter.label, make_requests(30, seed=3), temperature=0.5, max_response_tokens=77)
    assert await reference(engine, store, adapter) == first


async def test_a_batch_with_stop_texts_repeats(engine: EngineActor, store: StoreConfig, adapter: AdapterRef):
    await engine.publish(store=store, adapter=adapter)
    runs = [await answers(engine, adapter.label, make_requests(SIZE), stop=("e", "a")) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.usefixtures("busy_machine")
async def test_a_batch_repeats_on_a_busy_machine(engine: EngineActor, store: StoreConfig, adapter: AdapterRef):
    runs = [await reference(engine, store, adapter) for _ in range(2)]
    assert runs[0] == runs[1]


async def test_a_fresh_engine_serves_nothing_repeats_the_bits_and_dies_with_its_actor(
    engine: EngineActor, store: StoreConfig, adapter: AdapterRef, fresh_engine: subprocess.Popen[str]
):
    expected = await reference(engine, store, adapter)
    refusal = next_message(fresh_engine)["refusal"]
    assert refusal == "adapter version bits@1: not loaded here (loaded: none); publish it first"
    assert next_message(fresh_engine)["contents"] == json.loads(json.dumps(expected))

    children = [child.pid for child in psutil.Process(fresh_engine.pid).children(recursive=True)]
    assert len(children) >= 2
    os.kill(fresh_engine.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(running, children)), f"end of {children}, whose actor was killed")


def next_message(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON; vLLM logs to the same stream."""
    assert process.stdout is not None
    return json.loads(next(line for line in process.stdout if line.startswith("{")))
