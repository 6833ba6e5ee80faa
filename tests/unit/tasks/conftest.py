"""A run in a store, whose base model is a folder that only looks like one."""

import json
from pathlib import Path

import pytest

from lora_rl.config import RunConfig, StoreConfig, check_config
from lora_rl.store import ArtifactStore, RunRecords, open_store
from tasks.context import START, Iteration, open_iteration
from tests.builders import make_adapter


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    return check_config(
        {
            "run_name": "run",
            "iterations": 3,
            "model": {"name": str(model)},
            "data": {"type": "reasoning_gym", "task": "chain_sum"},
            "store": {"uri": f"file://{tmp_path}/store"},
        }
    )


@pytest.fixture
def store_uri(config: RunConfig) -> str:
    return config.store.uri


@pytest.fixture
def artifacts(store_uri: str) -> ArtifactStore:
    return open_store(StoreConfig(uri=store_uri))


@pytest.fixture
def records(config: RunConfig, artifacts: ArtifactStore) -> RunRecords:
    """The run, with its start and iteration 0 committed; the adapter after them has version 0 and 1."""
    records = RunRecords(artifacts, "run")
    records.create_run(config)
    state = artifacts.put_blob("state", b"state").to_json()
    for it in (START, 0):
        adapter = make_adapter(artifacts, version=it + 1).to_json()
        records.commit_iteration(it, {"it": it, "state": state, "adapter": adapter, "position": 4 * (it + 1)})
    return records


@pytest.fixture
async def at(records: RunRecords, store_uri: str) -> Iteration:
    """Iteration 1, about to begin."""
    return await open_iteration("run", 1, store_uri)
