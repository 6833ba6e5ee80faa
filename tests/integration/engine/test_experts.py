"""An engine of a model with experts, under adapters as the trainer exports them: of attention, of experts, of both."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine import PublishOutcome
from lora_rl.engine.actor import EngineActor
from lora_rl.store import AdapterRef
from tests.integration.engine.batches import SMALL_ENGINE, answers
from tests.integration.trainer.workplace import Workplace
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

TARGETS = {"attention": ["self_attn.*"], "experts": ["*.mlp.experts.*"], "all": "all-linear"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    place = Workplace(tmp_path_factory.mktemp("experts"))
    yield place
    place.end()


@pytest.fixture(scope="module")
def adapters(workplace: Workplace) -> dict[str, AdapterRef]:
    """Trained for three steps each."""
    refs = {}
    for name, targets in TARGETS.items():
        reply = workplace.train(family="qwen3_moe", adapter={"name": name, "target_modules": targets})[0]
        refs[name] = AdapterRef.from_json(reply["adapter"])
    workplace.end()
    return refs


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(workplace: Workplace, adapters: dict[str, AdapterRef]) -> AsyncIterator[EngineActor]:
    actor = EngineActor(
        model_path=str(workplace.model("qwen3_moe")),
        dtype="float32",
        engine=EngineConfig(**SMALL_ENGINE),
        max_rank=4,
        slots=3,
    )
    await actor.start()
    yield actor
    await actor.shutdown()


@pytest.mark.parametrize("name", TARGETS)
async def test_the_engine_agrees_with_the_trainer_on_the_probe(engine, workplace, adapters, name):
    reply = await engine.publish(store=StoreConfig(uri=workplace.uri), adapter=adapters[name])
    assert reply.outcome is PublishOutcome.LOADED
    assert reply.probe_error < PARITY
    assert reply.probe_effect > 100 * PARITY


async def test_adapters_that_answer_at_once_answer_as_alone(engine, adapters):
    async def first_logp(name: str) -> list[float]:
        return [answer.logp[0] for answer in await answers(engine, f"{name}@1", batch_id=name, max_response_tokens=1)]

    alone = {name: await first_logp(name) for name in adapters}
    together = await asyncio.gather(*map(first_logp, adapters))
    for name, logp in zip(adapters, together, strict=True):
        assert logp == pytest.approx(alone[name], abs=PARITY)
    assert all(a != b != c for a, b, c in zip(*alone.values(), strict=True))
