"""Opening a store, and what it refuses. What every store must do is in tests/integration/store."""

import subprocess
import sys
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import BlobRef, open_store


@pytest.mark.parametrize("uri", ["{}", "file://{}", "{}/", "{}/x/.."])
def test_folder_opens_by_path_and_by_uri(tmp_path: Path, uri: str):
    store = open_store(StoreConfig(uri=uri.format(tmp_path)))
    assert store.uri() == f"file://{tmp_path}"
    store.write("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("uri", ["store", "./store", "file://store", "file://./store"])
def test_relative_folder_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str):
    monkeypatch.chdir(tmp_path)
    store = open_store(StoreConfig(uri=uri))
    monkeypatch.chdir("/")
    assert store.uri("a") == f"file://{tmp_path}/store/a"
    store.write("a", b"1")
    assert (tmp_path / "store" / "a").read_bytes() == b"1"


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store(StoreConfig(uri="~/store")).uri() == f"file://{tmp_path}/store"


def test_folder_with_a_space_in_its_name_opens_by_its_own_uri(tmp_path: Path):
    store = open_store(StoreConfig(uri=str(tmp_path / "my store")))
    store.create("a", {"n": 1})
    assert open_store(StoreConfig(uri=store.uri())).read("a") == {"n": 1}


def test_opening_and_reading_make_no_folder(tmp_path: Path):
    store = open_store(StoreConfig(uri=str(tmp_path / "store")))
    assert store.read("a") is None
    assert store.list() == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "uri", ["s3://key:secret-1234@bucket/x", "s3://", "s3:///x", "s3://bucket/../x", "s3://b/a?x=1"]
)
def test_s3_uri_of_another_form_is_refused_without_repeating_it(uri: str):
    with pytest.raises(ConfigError, match=r"^store.uri: not of the form s3://bucket/prefix") as caught:
        open_store(StoreConfig.model_construct(uri=uri))
    assert "secret-1234" not in str(caught.value)


def test_keys_that_leave_the_root_are_refused_by_every_call(tmp_path: Path):
    store = open_store(StoreConfig(uri=str(tmp_path / "store")))
    ref = BlobRef(key="../secret", sha256="0" * 64, size=1)
    calls = [
        lambda: store.get_blob(ref),
        lambda: store.has_blob(ref),
        lambda: store.create("../a", {}),
        lambda: store.read("/etc/passwd"),
        lambda: store.write("a/../../b", b""),
        lambda: store.replace("../a", {}),
        lambda: store.delete("../a"),
        lambda: store.list(".."),
        lambda: store.uri("../a"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="not a relative path"):
            call()
    with pytest.raises(ConfigError, match="blob kind"):
        store.put_blob("../x", b"")
    assert list(tmp_path.iterdir()) == []


def test_import_of_the_store_is_cheap():
    heavy = "{'torch', 'ray', 'vllm', 'prefect', 's3fs', 'botocore'}"
    program = f"import sys, lora_rl.store; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
