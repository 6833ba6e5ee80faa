import subprocess
import sys
from pathlib import Path

import pytest

from lora_rl.errors import StoreError
from lora_rl.store.artifact_store import ArtifactStore
from lora_rl.store.local_objects import LocalObjects

DIES_AT = """
import os, signal, sys
from pathlib import Path
from lora_rl.store.local_objects import LocalObjects
setattr(os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
LocalObjects(Path(sys.argv[1])).{call}("runs/a/run.json", b"[1]")
"""


def die(root: Path, at: str, call: str) -> None:
    """`call` in a process that is killed when it comes to `os.<at>`."""
    done = subprocess.run([sys.executable, "-c", DIES_AT.format(call=call), str(root), at], check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("at", ["fsync", "link"])
def test_creator_killed_before_the_link_leaves_no_object(tmp_path: Path, at: str):
    die(tmp_path, at, "create")
    objects = LocalObjects(tmp_path)
    assert (objects.read("runs/a/run.json"), objects.stat("runs/a/run.json"), objects.find("")) == (None, None, [])
    assert objects.create("runs/a/run.json", b"[2]")
    assert objects.read("runs/a/run.json") == b"[2]"


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_writer_killed_before_the_rename_leaves_the_old_object(tmp_path: Path, at: str):
    objects = LocalObjects(tmp_path)
    objects.write("runs/a/run.json", b"[0]")
    die(tmp_path, at, "write")
    assert objects.read("runs/a/run.json") == b"[0]"
    assert [found.key for found in objects.find("")] == ["runs/a/run.json"]


def test_nothing_is_left_aside_by_writes_and_lost_races(tmp_path: Path):
    objects = LocalObjects(tmp_path)
    objects.write("a", b"1")
    assert objects.create("b", b"1")
    assert not objects.create("b", b"2")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a", "b"]


def test_folder_that_cannot_be_written_is_told_with_the_mend():
    objects = LocalObjects(Path("/sys/lora-rl"))  # refuses root, too
    with pytest.raises(StoreError, match=r"file:///sys/lora-rl/a: write failed: .*; give a folder") as caught:
        objects.write("a", b"1")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreError, match="give a folder"):
        ArtifactStore(objects).check()


def test_root_that_is_a_file_is_told_with_the_mend(tmp_path: Path):
    (tmp_path / "file").write_text("")
    objects = LocalObjects(tmp_path / "file")
    for call in (lambda: objects.create("a", b"1"), lambda: objects.read("a"), lambda: objects.stat("a")):
        with pytest.raises(StoreError, match="a part of this path is a file"):
            call()


def test_full_disk_is_told_with_the_mend():
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        _write_to_full_device()


def _write_to_full_device() -> None:
    objects = LocalObjects(Path("/dev/shm/lora-rl"))
    with objects._translated("write", "a"), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"1")


def test_folder_in_the_place_of_an_object_is_an_error(tmp_path: Path):
    objects = LocalObjects(tmp_path)
    objects.write("a/b", b"1")
    with pytest.raises(StoreError, match="Is a directory"):
        objects.read("a")
