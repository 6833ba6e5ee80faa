"""The publish benchmark on this engine: each version by way of shared memory, from a trainer beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.publish import HEADER, STAGES, publish, row
from benchmarks.served import Case, Exporter
from lora_rl.config import StoreConfig
from lora_rl.engine.actor import EngineActor
from tests.integration.engine.batches import answers, loaded_ids, make_requests

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CASE = Case(model="tiny-qwen3", dtype="float32", rank=4)


@pytest.fixture
def trainer(model_path: Path, store: StoreConfig) -> Iterator[Exporter]:
    exporter = Exporter(CASE, model_path, store)
    yield exporter
    exporter.close()


async def test_each_version_is_timed_by_stage_loaded_once_and_served(
    engine: EngineActor, trainer: Exporter, store: StoreConfig
):
    state, rounds, last_ids = trainer.state("bench", 0), [], []
    for number in range(2):
        seconds, adapter = await publish(engine, trainer, state, number, store)
        assert (await engine.serving())[f"bench@{number}"] == adapter.digest
        rounds.append(seconds)
        last_ids.append(max(await loaded_ids(engine)))
    # Numbers are given by the load: what was staged is what serves.
    assert last_ids[1] == last_ids[0] + 1
    (answer,) = await answers(engine, "bench@1", make_requests(1))
    assert answer.tokens
    timed = set(STAGES) - {"add_lora"}
    assert all(seconds[stage] > 0 for seconds in rounds for stage in timed)
    assert len(row(CASE, adapter.weights.size, [seconds | {"add_lora": 1.0} for seconds in rounds])) == len(HEADER)
