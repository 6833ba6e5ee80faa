import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from lora_rl.config import StoreConfig
from lora_rl.engine.adapter_files import adapter_files
from lora_rl.errors import DataError, DigestMismatch, StoreError
from lora_rl.store import handover, open_store
from lora_rl.store.handover import announce, ring_directory
from lora_rl.store.refs import AdapterRef

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
PROBE = {"prompt_tokens": [1], "token_ids": [2, 3], "logp": [-1.0, -2.0], "logp_base": [-1.0, -2.0]}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    return StoreConfig(uri=f"file://{tmp_path}")


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    monkeypatch.setattr(handover, "shared_folder", lambda: folder)
    monkeypatch.setattr("lora_rl.engine.adapter_files.shared_folder", lambda: folder)
    return folder


def opened(store: StoreConfig, ref: AdapterRef) -> None:
    with adapter_files(store, ref, max_rank=8):
        pass


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


def test_a_sound_adapter_comes_back_as_a_peft_directory(store: StoreConfig, folder: Path):
    with adapter_files(store, put(store), max_rank=8) as files:
        assert files.probe.token_ids == [2, 3]
        assert files.handover is None
        assert (files.directory / "adapter_model.safetensors").read_bytes() == save(tensors())
        assert json.loads((files.directory / "adapter_config.json").read_text()) == CONFIG
    assert list(folder.iterdir()) == []


def test_what_the_trainer_hands_over_is_taken_without_reading_the_store(store: StoreConfig, tmp_path: Path):
    ref = put(store)
    directory = ring_directory("a", 1)
    (directory / "adapter_model.safetensors").write_bytes(save({k: v.astype(np.float16) for k, v in tensors().items()}))
    (directory / "adapter_config.json").write_bytes(json.dumps(CONFIG).encode())
    handed = announce(directory, ref, json.dumps(PROBE).encode())
    (tmp_path / ref.weights.key).unlink()
    with adapter_files(store, ref, max_rank=8) as files:
        assert (files.directory, files.handover) == (directory, handed.digest)
        assert files.probe.token_ids == [2, 3]
    (directory / "adapter_model.safetensors").write_bytes(b"overwritten")
    with pytest.raises(StoreError, match="missing"):
        opened(store, ref)


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
        opened(store, put(store, **fault))


def test_bytes_that_changed_in_the_store_are_refused(store: StoreConfig, tmp_path: Path):
    ref = put(store)
    path = tmp_path / ref.weights.key
    path.chmod(0o644)
    path.write_bytes(save(tensors(rank=2)))
    with pytest.raises(DigestMismatch):
        opened(store, ref)


def test_a_missing_file_is_refused(store: StoreConfig, tmp_path: Path):
    ref = put(store)
    (tmp_path / ref.probe.key).unlink()
    with pytest.raises(StoreError, match="missing"):
        opened(store, ref)


def test_without_shared_memory_the_files_lie_on_the_disk(store: StoreConfig, monkeypatch: pytest.MonkeyPatch):
    def full() -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr("lora_rl.engine.adapter_files.shared_folder", full)
    with adapter_files(store, put(store), max_rank=8) as files:
        assert (files.directory / "adapter_model.safetensors").read_bytes() == save(tensors())
    assert not files.directory.exists()
