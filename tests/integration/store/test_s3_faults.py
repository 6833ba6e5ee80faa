"""What goes wrong on the way to an S3 server, and what the store makes of it."""

import os
import threading
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import ArtifactStore, RunRecords, open_store
from lora_rl.store.s3_objects import Backoff, S3Objects
from tests.integration.store.conftest import use_environment
from tests.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, Fault, FaultyProxy, S3Process, aws_environment, client, seaweedfs

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(s3_server: S3Process, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3_server.endpoint)
    use_environment(monkeypatch, aws_environment(proxy.endpoint))
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: FaultyProxy) -> ArtifactStore:
    return open_store(StoreConfig(uri=f"s3://{BUCKET}/{uuid.uuid4().hex}"))


TRANSIENT = [Fault.RESET, Fault.UNAVAILABLE, Fault.EXPIRED]


@pytest.mark.parametrize("fault", [*TRANSIENT, Fault.CUT_REQUEST, Fault.LOSE_REPLY])
def test_write_outlives_a_fault(store: ArtifactStore, proxy: FaultyProxy, fault: Fault):
    store.write("runs/a.json", b"{}")
    proxy.faults = [fault]
    store.write("runs/a.json", b'{"by": "a longer document"}')
    assert proxy.faults == []
    assert store.read("runs/a.json") == {"by": "a longer document"}


@pytest.mark.parametrize("fault", [*TRANSIENT, Fault.LOSE_REPLY, Fault.TRUNCATE_REPLY])
def test_read_outlives_a_fault(store: ArtifactStore, proxy: FaultyProxy, fault: Fault):
    ref = store.put_blob("samples", b"data" * 1000)
    store.create("runs/a/run.json", {"by": 1})
    for read, expected in [
        (lambda: store.get_blob(ref), b"data" * 1000),
        (lambda: store.has_blob(ref), True),
        (lambda: store.read("runs/a/run.json"), {"by": 1}),
        (lambda: store.list("runs"), ["runs/a/run.json"]),
        (lambda: store.read("runs/a/none.json"), None),
    ]:
        proxy.faults = [fault]
        assert read() == expected
        assert proxy.faults == []


def test_server_that_fails_for_a_while_is_waited_for(store: ArtifactStore, proxy: FaultyProxy):
    proxy.faults = [Fault.UNAVAILABLE] * 7
    ref = store.put_blob("samples", b"data")
    assert proxy.faults == []
    assert store.has_blob(ref)


def test_server_that_keeps_failing_is_an_error(proxy: FaultyProxy):
    store = ArtifactStore(S3Objects(BUCKET, "failing", Backoff(attempts=2, first_s=0.01)))
    proxy.faults = [Fault.UNAVAILABLE] * 50
    with pytest.raises(StoreError, match=r"failing/runs/a.json: read failed: the server answered 503"):
        store.read("runs/a.json")
    assert 40 < len(proxy.faults) < 50


def test_cut_upload_leaves_no_object(proxy: FaultyProxy, s3_server: S3Process):
    prefix = uuid.uuid4().hex
    store = ArtifactStore(S3Objects(BUCKET, prefix, Backoff(attempts=1)))
    proxy.faults = [Fault.CUT_REQUEST] * 50
    with pytest.raises(StoreError):
        store.write("adapters/a", b"data" * 100_000)
    assert "Contents" not in client(s3_server.endpoint).list_objects_v2(Bucket=BUCKET, Prefix=prefix)


def test_creator_whose_reply_got_lost_gets_its_own_document(store: ArtifactStore, proxy: FaultyProxy):
    proxy.faults = [Fault.LOSE_REPLY]
    assert store.create("runs/a/run.json", {"by": 1}) == {"by": 1}
    assert [request.split()[0] for request in proxy.requests] == ["PUT", "PUT", "GET"]


def test_attempt_whose_reply_got_lost_counts_once(store: ArtifactStore, proxy: FaultyProxy):
    records = RunRecords(store, "night")
    proxy.faults = [Fault.LOSE_REPLY]
    assert records.begin_attempt(0, "rollout") == 1
    assert records.begin_attempt(0, "rollout") == 2


def test_document_takes_one_request_to_read(store: ArtifactStore, proxy: FaultyProxy):
    store.create("runs/a/run.json", {})
    proxy.requests.clear()
    store.read("runs/a/run.json")
    store.read("runs/a/none.json")
    assert [request.split()[0] for request in proxy.requests] == ["GET", "GET"]


def test_writes_go_on_when_the_server_is_killed_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = seaweedfs(tmp_path / "seaweedfs")
    server.start()
    use_environment(monkeypatch, server.environment)
    store = open_store(StoreConfig(uri=f"s3://{BUCKET}/outage"))
    blobs = [os.urandom(5000) for _ in range(60)]
    before_the_crash, after_the_crash = threading.Event(), threading.Event()

    def put(number: int):
        if number == 20:
            before_the_crash.set()
            after_the_crash.wait(200)
        return store.put_blob("samples", blobs[number])

    try:
        with ThreadPoolExecutor(1) as pool:
            refs = pool.map(put, range(len(blobs)))
            assert before_the_crash.wait(200)
            server.kill()
            after_the_crash.set()
            server.start()
            assert [store.get_blob(ref) for ref in refs] == blobs
    finally:
        server.kill()


def test_rotated_credentials_are_read_afresh(s3_server: S3Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = gone\naws_secret_access_key = gone\n")
    variables = {name: value for name, value in s3_server.environment.items() if "ACCESS_KEY" not in name}
    use_environment(monkeypatch, {**variables, "AWS_SHARED_CREDENTIALS_FILE": str(file)})
    store = open_store(StoreConfig(uri=f"s3://{BUCKET}/rotated"))
    with pytest.raises(StoreError, match="does not allow it"):
        store.put_blob("samples", b"data")
    file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    assert store.has_blob(store.put_blob("samples", b"data"))


WRONG_SECRET = "wrong-secret-93a0"


@pytest.mark.parametrize(
    ("variables", "bucket", "text"),
    [
        ({}, "no-such-bucket", "the bucket does not exist; create it, or correct store.uri"),
        ({"AWS_SECRET_ACCESS_KEY": WRONG_SECRET}, BUCKET, "does not allow it .*AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, BUCKET, "does not allow it .*AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, BUCKET, "no credentials found; set AWS_"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, BUCKET, "127.0.0.1:9 cannot be reached .*AWS_ENDPOINT_URL"),
        ({"AWS_PROFILE": "missing"}, BUCKET, "no credentials found"),
    ],
)
def test_each_call_says_what_to_mend_and_no_secret(s3_server, monkeypatch, variables, bucket, text):
    merged = {**s3_server.environment, **variables}
    use_environment(monkeypatch, {name: value for name, value in merged.items() if value is not None})
    store = open_store(StoreConfig(uri=f"s3://{bucket}/mend"))
    fast = ArtifactStore(S3Objects(bucket, "mend", Backoff(attempts=1)))
    calls = [
        store.check,
        lambda: fast.read("runs/a.json"),
        lambda: fast.create("runs/a.json", {}),
        lambda: fast.put_blob("samples", b"data"),
        lambda: fast.list("runs"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=text) as caught:
            call()
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET_KEY not in told
        assert WRONG_SECRET not in told
        assert caught.value.__cause__ is not None


def test_check_finds_a_server_that_ignores_the_condition_of_a_create(
    moto_server: S3Process, monkeypatch: pytest.MonkeyPatch
):
    proxy = FaultyProxy(moto_server.endpoint)  # seaweedfs would refuse the changed signature
    use_environment(monkeypatch, aws_environment(proxy.endpoint))
    proxy.faults = [Fault.IGNORE_CONDITION] * 10
    with pytest.raises(StoreError, match="created twice: the server ignores If-None-Match"):
        open_store(StoreConfig(uri=f"s3://{BUCKET}/unconditional")).check()
    proxy.close()


def test_password_in_the_endpoint_is_refused_without_repeating_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{WRONG_SECRET}@127.0.0.1:9")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL: holds a user or password") as caught:
        open_store(StoreConfig(uri="s3://bucket/prefix"))
    assert WRONG_SECRET not in str(caught.value)
