"""What every store must do, on a folder and on two S3 implementations."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import DigestMismatch, StoreError
from lora_rl.store import ArtifactStore, BlobRef, open_store, sha256_of
from tests.store_race import race

pytestmark = pytest.mark.integration


def test_blob_comes_back_under_its_digest(store: ArtifactStore):
    data = os.urandom(100_000)
    ref = store.put_blob("samples", data)
    assert ref == BlobRef(key=f"cas/samples/{sha256_of(data)}", sha256=sha256_of(data), size=100_000)
    assert store.has_blob(ref)
    assert store.get_blob(ref) == data


def test_empty_blob_is_a_blob(store: ArtifactStore):
    ref = store.put_blob("samples", b"")
    assert store.has_blob(ref)
    assert store.get_blob(ref) == b""


def test_blob_that_is_sent_in_parts_comes_back(store: ArtifactStore):
    data = os.urandom(2**20) * 101  # s3fs sends 100 MiB and more in parts, and fetches above 50 MiB in ranges
    assert store.get_blob(store.put_blob("state", data)) == data


def test_present_blob_is_not_written_again(store: ArtifactStore):
    ref = store.put_blob("samples", b"12345678")
    store.write(ref.key, b"87654321")  # same size: only a second write would bring the bytes back
    assert store.put_blob("samples", b"12345678") == ref
    with pytest.raises(DigestMismatch):
        store.get_blob(ref)


def test_blob_of_wrong_size_counts_as_absent_and_is_written_again(store: ArtifactStore):
    ref = store.put_blob("samples", b"12345678")
    store.write(ref.key, b"1234")
    assert not store.has_blob(ref)
    store.put_blob("samples", b"12345678")
    assert store.get_blob(ref) == b"12345678"


def test_altered_blob_is_refused_by_its_key(store: ArtifactStore):
    ref = store.put_blob("samples", b"12345678")
    store.write(ref.key, b"12345679")
    with pytest.raises(DigestMismatch, match=ref.key):
        store.get_blob(ref)


def test_missing_blob_is_an_error_that_names_it(store: ArtifactStore):
    ref = BlobRef(key=f"cas/samples/{'0' * 64}", sha256="0" * 64, size=1)
    assert not store.has_blob(ref)
    with pytest.raises(StoreError, match=f"{ref.key}: missing; put it back from a backup, or .*--fork"):
        store.get_blob(ref)


def test_blobs_are_found_with_size_and_age_and_deleted_unless_written_since(store: ArtifactStore):
    assert store.blobs() == []
    refs = [store.put_blob(kind, data) for kind, data in (("samples", b"12"), ("state", b"1234"), ("state", b"5"))]
    store.create("runs/a/run.json", {})
    found = store.blobs()
    assert {(blob.key, blob.size) for blob in found} == {(ref.key, ref.size) for ref in refs}
    assert all(abs(time.time() - blob.modified) < 120 for blob in found)
    assert not store.delete_blob(replace(found[0], modified=found[0].modified - 60))
    assert store.blobs() == found
    assert all(store.delete_blob(blob) for blob in found)
    assert store.blobs() == []
    assert not store.delete_blob(found[0])
    assert store.read("runs/a/run.json") == {}


def test_folder_is_not_a_blob(store: ArtifactStore):
    ref = store.put_blob("samples", b"data")
    assert not store.has_blob(BlobRef(key="cas/samples", sha256=ref.sha256, size=0))


def test_second_creator_gets_the_first_document(store: ArtifactStore):
    assert store.create("runs/a/run.json", {"by": 1}) == {"by": 1}
    assert store.create("runs/a/run.json", {"by": 2}) == {"by": 1}
    assert store.read("runs/a/run.json") == {"by": 1}


def test_absent_document_reads_as_none(store: ArtifactStore):
    assert store.read("runs/a/run.json") is None
    assert store.list("runs/b") == []


def test_document_that_is_no_json_object_is_refused_by_its_key(store: ArtifactStore):
    store.write("runs/a/cut.json", b'{"by": ')
    store.write("runs/a/list.json", b"[]")
    for key in ("runs/a/cut.json", "runs/a/list.json"):
        with pytest.raises(StoreError, match=key):
            store.read(key)


def test_replaced_document_is_the_one_read(store: ArtifactStore):
    store.create("runs/a/rollout.json", {"by": 1})
    store.replace("runs/a/rollout.json", {"by": 2})
    assert store.read("runs/a/rollout.json") == {"by": 2}


def test_deleted_document_can_be_created_again(store: ArtifactStore):
    store.create("runs/a/rollout.json", {"by": 1})
    store.delete("runs/a/rollout.json")
    store.delete("runs/a/rollout.json")
    assert store.create("runs/a/rollout.json", {"by": 2}) == {"by": 2}


def test_list_gives_keys_below_a_folder_and_not_below_its_namesakes(store: ArtifactStore):
    for key in ("runs/a/it00001/b.json", "runs/a/it00001/a.json", "runs/ab/run.json"):
        store.create(key, {})
    assert store.list("runs/a") == store.list("runs/a/") == ["runs/a/it00001/a.json", "runs/a/it00001/b.json"]
    assert store.list() == ["runs/a/it00001/a.json", "runs/a/it00001/b.json", "runs/ab/run.json"]
    assert store.list("runs/a/it00001/a.json") == []


def test_more_keys_than_a_server_lists_at_a_time_are_listed(store: ArtifactStore):
    keys = [f"many/{n:04d}" for n in range(1003)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.write(key, b""), keys))
    assert store.list("many") == keys


def test_writes_of_another_store_are_seen_at_once(store: ArtifactStore, store_uri: str):
    other = open_store(StoreConfig(uri=store_uri))
    assert (store.list("runs"), store.read("runs/a/1.json")) == ([], None)
    other.create("runs/a/1.json", {"n": 1})
    assert (store.list("runs"), store.read("runs/a/1.json")) == (["runs/a/1.json"], {"n": 1})
    other.replace("runs/a/1.json", {"n": 2})
    other.create("runs/a/2.json", {})
    assert (store.list("runs"), store.read("runs/a/1.json")) == (["runs/a/1.json", "runs/a/2.json"], {"n": 2})
    other.delete("runs/a/1.json")
    assert (store.list("runs"), store.read("runs/a/1.json")) == (["runs/a/2.json"], None)


def test_blob_that_changed_since_it_was_listed_is_measured_anew(store: ArtifactStore, store_uri: str):
    ref, other = store.put_blob("samples", b"12345678"), open_store(StoreConfig(uri=store_uri))
    assert store.list("cas/samples") == [ref.key]
    other.write(ref.key, b"1234")
    assert not store.has_blob(ref)
    other.write(ref.key, b"12345678")
    assert store.has_blob(ref)
    other.delete(ref.key)
    assert not store.has_blob(ref)


def test_uri_of_the_root_opens_the_same_store(store: ArtifactStore):
    ref = store.put_blob("samples", b"data")
    assert open_store(StoreConfig(uri=store.uri())).get_blob(ref) == b"data"
    assert store.uri(ref.key) == f"{store.uri()}/{ref.key}"


def test_check_passes_and_leaves_nothing(store: ArtifactStore):
    store.check()
    assert store.list() == []


async def test_threads_of_one_event_loop_share_a_store(store: ArtifactStore):
    blobs = [os.urandom(2000) for _ in range(48)]
    refs = await asyncio.gather(*(asyncio.to_thread(store.put_blob, "samples", blob) for blob in blobs))
    assert await asyncio.gather(*(asyncio.to_thread(store.get_blob, ref) for ref in refs)) == blobs


async def test_threads_that_create_one_document_see_one_winner(store: ArtifactStore):
    docs = await asyncio.gather(*(asyncio.to_thread(store.create, "runs/a/x.json", {"by": n}) for n in range(16)))
    assert docs == [store.read("runs/a/x.json")] * 16


def test_processes_that_create_one_document_see_one_winner(store: ArtifactStore, store_uri: str):
    keys = [f"runs/a/it{n:05d}/COMMIT.json" for n in range(10)]
    seen = race(store_uri, keys, contenders=4)
    assert seen == [[store.read(key) for key in keys]] * 4
    assert store.list() == keys


def test_session_fixture_gives_a_store_that_works(s3_store_uri: str):
    open_store(StoreConfig(uri=s3_store_uri)).check()
