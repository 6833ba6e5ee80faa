import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from lora_rl.config import StoreConfig
from lora_rl.engine.adapter_files import peft_directory, read_adapter
from lora_rl.errors import DataError, DigestMismatch, StoreError
from lora_rl.store import open_store
from lora_rl.store.refs import AdapterRef

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
PROBE = {"prompt_tokens": [1], "token_ids": [2, 3], "logp": [-1.0, -2.0], "logp_base": [-1.0, -2.0]}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    return StoreConfig(uri=f"file://{tmp_path}")


def tensors(rank: int = 4, module: str = Q_PROJ) -> dict[str, np.ndarray]:
    return {
        f"{module}.lora_A.weight": np.ones((rank, 8), np.float32),
        f"{module}.lora_B.weight": np.ones((6, rank), np.float32),
    }


def put(
    store: StoreConfig, *, weights: bytes | None = None, config: object = CONFIG, probe: object = PROBE
) -> AdapterRef:
    blobs = open_store(store)
    return AdapterRef(
        name="a",
        version=1,
        weights=blobs.put_blob("adapter", save(tensors()) if weights is None else weights),
        config=blobs.put_blob("adapter", json.dumps(config).encode()),
        probe=blobs.put_blob("adapter", json.dumps(probe).encode()),
    )


def test_a_sound_adapter_comes_back_as_a_peft_directory(store: StoreConfig):
    files = read_adapter(store, put(store), max_rank=8)
    assert files.probe.token_ids == [2, 3]
    with peft_directory(files) as directory:
        assert (directory / "adapter_model.safetensors").read_bytes() == save(tensors())
        assert json.loads((directory / "adapter_config.json").read_text()) == CONFIG
    assert not directory.exists()


def without_b() -> bytes:
    values = tensors()
    del values[f"{Q_PROJ}.lora_B.weight"]
    return save(values)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"weights": save(tensors())[:-8]}, "cannot be read"),
        ({"weights": b"not safetensors"}, "cannot be read"),
        ({"weights": save({})}, "holds no tensors"),
        ({"weights": save(tensors(rank=2))}, r"has shape .*the config says rank 4"),
        ({"weights": save(tensors(module="model.layers.0.self_attn.q_proj"))}, "is not base_model.model"),
        ({"weights": without_b()}, "lora_A or lora_B is missing"),
        ({"config": CONFIG | {"r": 16}}, "rank 16 exceeds the engine's 8"),
        ({"config": CONFIG | {"r": 0}}, "of rank 0"),
        ({"config": CONFIG | {"peft_type": "IA3"}}, "'IA3'"),
        ({"config": {"r": 4}}, "no PEFT config"),
        ({"config": ["r", 4]}, "no PEFT config"),
        ({"probe": PROBE | {"logp": [-1.0]}}, "differ in length"),
        ({"probe": PROBE | {"prompt_tokens": []}}, "are empty"),
        ({"probe": {"token_ids": [1]}}, "not as the trainer writes it"),
    ],
)
def test_faulty_files_are_refused_with_the_reason(store: StoreConfig, fault: dict, message: str):
    with pytest.raises(DataError, match=rf"a@1: .*{message}"):
        read_adapter(store, put(store, **fault), max_rank=8)


def test_bytes_that_changed_in_the_store_are_refused(store: StoreConfig, tmp_path: Path):
    ref = put(store)
    path = tmp_path / ref.weights.key
    path.chmod(0o644)
    path.write_bytes(save(tensors(rank=2)))
    with pytest.raises(DigestMismatch):
        read_adapter(store, ref, max_rank=8)


def test_a_missing_file_is_refused(store: StoreConfig, tmp_path: Path):
    ref = put(store)
    (tmp_path / ref.probe.key).unlink()
    with pytest.raises(StoreError, match="missing"):
        read_adapter(store, ref, max_rank=8)
