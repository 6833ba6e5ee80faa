"""One engine for all tests here: starting it takes half a minute."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.models.tiny import make_tiny_qwen3
from tests.integration.engine.batches import SMALL_ENGINE
from tests.peft_adapters import PeftExporter


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreConfig:
    return StoreConfig(uri=f"file://{tmp_path_factory.mktemp('store')}")


@pytest.fixture(scope="session")
def exporter(model_path: Path, store: StoreConfig) -> PeftExporter:
    return PeftExporter(model_path, store)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(model_path: Path) -> AsyncIterator[EngineActor]:
    """Serves two adapters, two versions of each, of rank up to 4 (vLLM's 8), in float32."""
    actor = EngineActor(
        model_path=str(model_path), dtype="float32", engine=EngineConfig(**SMALL_ENGINE), max_rank=4, slots=2, seed=0
    )
    await actor.start()
    yield actor
    await actor.shutdown()
