import json
import threading
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, DigestMismatch, StoreError
from lora_rl.store import ArtifactStore, download_adapter, open_store, promote_adapter
from lora_rl.store.local_objects import LocalObjects
from tests.builders import make_adapter

FOLDER = "adapters/night/default"
FILES = ["adapter_config.json", "adapter_model.safetensors", "manifest.json"]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path / "store")))


def test_promoted_adapter_is_a_peft_directory_with_a_manifest(store: ArtifactStore, tmp_path: Path):
    adapter = make_adapter(store, 3)
    assert promote_adapter(store, "night", adapter) == f"file://{tmp_path}/store/{FOLDER}"
    assert (tmp_path / "store" / FOLDER / FILES[1]).read_bytes() == b"weights of version 3"
    assert store.read(f"{FOLDER}/manifest.json") == {
        "name": "default",
        "version": 3,
        "files": {
            "adapter_config.json": {"sha256": adapter.config.sha256, "size": adapter.config.size},
            "adapter_model.safetensors": {"sha256": adapter.digest, "size": 20},
        },
    }


def test_second_promotion_replaces_the_files_and_adds_none(store: ArtifactStore, tmp_path: Path):
    for version in (1, 1, 2):
        promote_adapter(store, "night", make_adapter(store, version))
        assert store.list("adapters") == [f"{FOLDER}/{file}" for file in FILES]
    assert (tmp_path / "store" / FOLDER / FILES[1]).read_bytes() == b"weights of version 2"
    assert store.read(f"{FOLDER}/manifest.json")["version"] == 2


class FailingObjects(LocalObjects):
    fails_at = ""

    def write(self, key: str, data: bytes) -> None:
        if key.endswith(self.fails_at):
            raise StoreError(f"{key}: on purpose")
        super().write(key, data)


@pytest.mark.parametrize("file", FILES)
def test_promotion_that_breaks_off_leaves_no_manifest_and_can_be_repeated(tmp_path: Path, file: str):
    objects = FailingObjects(tmp_path)
    objects.fails_at = "nowhere"
    store = ArtifactStore(objects)
    promote_adapter(store, "night", make_adapter(store, 1))
    newer = make_adapter(store, 2)
    objects.fails_at = file
    with pytest.raises(StoreError, match="on purpose"):
        promote_adapter(store, "night", newer)
    assert store.read(f"{FOLDER}/manifest.json") is None
    objects.fails_at = "nowhere"
    promote_adapter(store, "night", newer)
    assert store.read(f"{FOLDER}/manifest.json")["version"] == 2


def test_altered_weights_are_not_promoted(store: ArtifactStore):
    adapter = make_adapter(store)
    store.write(adapter.weights.key, b"weights of version X")
    with pytest.raises(DigestMismatch, match=adapter.digest):
        promote_adapter(store, "night", adapter)
    assert store.read(f"{FOLDER}/manifest.json") is None


def test_names_that_leave_the_folder_are_refused(store: ArtifactStore):
    with pytest.raises(ConfigError, match="run name"):
        promote_adapter(store, "..", make_adapter(store))
    with pytest.raises(ConfigError, match="adapter name"):
        promote_adapter(store, "night", make_adapter(store, name="../x"))


def test_downloaded_adapter_is_a_peft_directory(store: ArtifactStore, tmp_path: Path):
    out = tmp_path / "a" / "out"
    download_adapter(store, make_adapter(store), out)
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert (out / FILES[1]).read_bytes() == b"weights of version 1"
    assert json.loads((out / FILES[0]).read_bytes()) == {"peft_type": "LORA"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_download_fills_an_empty_folder_and_replaces_an_older_download(store: ArtifactStore, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    for version in (1, 2, 2):
        download_adapter(store, make_adapter(store, version), out)
        assert (out / FILES[1]).read_bytes() == f"weights of version {version}".encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


@pytest.mark.parametrize("foreign", ["notes.txt", "adapter_model.safetensors"])
def test_download_leaves_a_foreign_folder_alone(store: ArtifactStore, tmp_path: Path, foreign: str):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / foreign).write_text("mine")
    with pytest.raises(ConfigError, match=r"out: is not an empty folder .*; give another one"):
        download_adapter(store, make_adapter(store), tmp_path / "out")
    assert (tmp_path / "out" / foreign).read_text() == "mine"
    with pytest.raises(ConfigError):
        download_adapter(store, make_adapter(store), tmp_path / "out" / foreign)


def test_download_with_a_file_beside_it_is_foreign(store: ArtifactStore, tmp_path: Path):
    download_adapter(store, make_adapter(store, 1), tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        download_adapter(store, make_adapter(store, 2), tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_download_replaces_a_link_to_an_older_download(store: ArtifactStore, tmp_path: Path):
    download_adapter(store, make_adapter(store, 1), tmp_path / "first")
    (tmp_path / "out").symlink_to(tmp_path / "first")
    download_adapter(store, make_adapter(store, 2), tmp_path / "out")
    assert (tmp_path / "out" / FILES[1]).read_bytes() == b"weights of version 2"
    assert (tmp_path / "first" / FILES[1]).read_bytes() == b"weights of version 1"


def test_failed_download_leaves_nothing(store: ArtifactStore, tmp_path: Path):
    adapter = make_adapter(store)
    store.write(adapter.weights.key, b"weights of version X")
    with pytest.raises(DigestMismatch):
        download_adapter(store, adapter, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("older", [False, True], ids=["nothing there", "another version there"])
def test_downloads_to_one_folder_at_a_time_all_succeed(store: ArtifactStore, tmp_path: Path, older: bool):
    adapter, failures = make_adapter(store, 2), []
    if older:
        download_adapter(store, make_adapter(store, 1), tmp_path / "out")
    start = threading.Barrier(8)

    def download() -> None:
        start.wait()
        try:
            download_adapter(store, adapter, tmp_path / "out")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=download) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
