import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import StoreError
from lora_rl.store import ArtifactStore, handover, open_store
from lora_rl.store.handover import CONFIG, WEIGHTS, announce, digest_of, find, ring_directory, shared_folder
from tests.builders import make_adapter

DEAD = "999999999"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return open_store(StoreConfig(uri=f"file://{tmp_path_factory.mktemp('store')}"))


def written(version: int, weights: bytes = b"bfloat16") -> Path:
    directory = ring_directory("a", version)
    (directory / WEIGHTS).write_bytes(weights)
    (directory / CONFIG).write_bytes(b'{"peft_type":"LORA"}')
    return directory


def test_an_announced_handover_is_found_by_the_exported_version_alone(store: ArtifactStore) -> None:
    directory = written(1)
    ref = make_adapter(store, 1)
    assert find(ref) is None
    handed = announce(directory, ref, b"{}")
    assert find(ref) == handed
    assert find(make_adapter(store, 2)) is None
    assert find(make_adapter(store, 1, config=store.put_blob("adapter_config", b"other"))) is None
    assert find(make_adapter(store, 1, probe=store.put_blob("probe", b"other"))) is None


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
def test_bytes_that_changed_are_not_found(store: ArtifactStore, file: str) -> None:
    directory = written(1)
    ref = make_adapter(store, 1)
    handed = announce(directory, ref, b"{}")
    (directory / file).write_bytes(b"later")
    assert find(ref) is None
    assert digest_of(directory) != handed.digest


def test_weights_that_the_caller_has_digested_are_not_read_again(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = make_adapter(store, 1)
    handed = announce(written(1), ref, b"{}")
    read: list[Path] = []
    monkeypatch.setattr(handover, "digest_of", read.append)
    assert find(ref, handed.digest) == handed
    assert read == []
    assert find(ref, "another") is None
    assert read == [Path(handed.directory)]


def test_the_version_after_the_next_takes_the_same_memory(store: ArtifactStore, folder: Path) -> None:
    ref = make_adapter(store, 1)
    announce(written(1), ref, b"{}")
    assert ring_directory("a", 2) != ring_directory("a", 3)
    assert find(ref) is None
    assert len(list(folder.iterdir())) == handover.RING


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_has_stays(folder: Path) -> None:
    (folder / f"{DEAD}-a-0").mkdir()
    mine = folder / f"{os.getpid()}-b-0"
    mine.mkdir()
    ring_directory("a", 0)
    assert not (folder / f"{DEAD}-a-0").exists()
    assert mine.exists()


def test_what_a_process_left_that_nobody_reaps_is_removed(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (folder / f"{process.pid}-a-0").mkdir()
        handover.remove_orphans()
    assert list(folder.iterdir()) == []


def test_an_exporter_keeps_the_adapters_that_it_is_told_to(folder: Path) -> None:
    dropped = [ring_directory("a", 0), ring_directory("a", 1), ring_directory("a-b-0", 0)]
    kept = [ring_directory("a-b", 1), ring_directory("c", 0), folder / f"{os.getppid()}-a-0"]
    kept[-1].mkdir()
    handover.keep_only(["a-b", "c"])
    assert not any(directory.exists() for directory in dropped)
    assert all(directory.exists() for directory in kept)


def test_the_digest_is_of_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "CHUNK", 4)
    digests = {digest_of(written(1, weights)) for weights in (b"aaaabbbbcc", b"aaaabbbbcd", b"bbbbaaaacc", b"aaaa")}
    assert len(digests) == 4


def test_a_handover_that_is_gone_is_not_found(store: ArtifactStore) -> None:
    directory, ref = written(1), make_adapter(store, 1)
    announce(directory, ref, b"{}")
    (directory / WEIGHTS).unlink()
    assert find(ref) is None


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(handover, "ROOM", 2**80)
    monkeypatch.setattr(handover.tempfile, "gettempdir", lambda: str(tmp_path))
    assert shared_folder().stat().st_mode & 0o777 == 0o700
    (tmp_path / "elsewhere").mkdir()
    shared_folder().rmdir()
    (tmp_path / f"lora-rl-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="belongs to another user"):
        shared_folder()


def test_a_note_that_is_half_written_is_not_read(store: ArtifactStore) -> None:
    directory = written(1)
    (directory / "handover.json.part").write_text(json.dumps({"weights": make_adapter(store, 1).weights.sha256}))
    assert find(make_adapter(store, 1)) is None


def test_a_process_of_another_user_has_no_handover_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, sent: int) -> None:
        raise PermissionError

    (folder / "1-a-0").mkdir()
    monkeypatch.setattr(handover.os, "kill", forbidden)
    handover.remove_orphans()
    assert list(folder.iterdir()) == []


def test_shared_memory_that_cannot_be_read_holds_nothing(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Path:
        raise StoreError("belongs to another user")

    monkeypatch.setattr(handover, "shared_folder", refused)
    assert find(make_adapter(store, 1)) is None
