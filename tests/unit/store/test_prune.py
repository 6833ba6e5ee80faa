"""What is deleted, and above all what is not. Blobs count as old once a test has aged them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import START, AdapterRef, ArtifactStore, BlobRef, Fork, RunRecords, open_store
from lora_rl.store.artifact_store import FRESH_S
from lora_rl.store.prune import GRACE_S, Prunable, Thinning, prunable, prune
from lora_rl.store.refs import ADAPTER, STATE
from tests.builders import make_run_config, make_step_record


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path)))


@pytest.fixture
def age(tmp_path: Path) -> Callable[[float], None]:
    """Makes all blobs so many seconds old."""

    def age(seconds: float) -> None:
        for blob in (tmp_path / "cas").rglob("*"):
            os.utime(blob, (time.time() - seconds,) * 2)

    return age


def run_of(store: ArtifactStore, name: str, iterations: int, fork: Fork | None = None) -> RunRecords:
    """A run of so many committed iterations."""
    records = RunRecords(store, name)
    records.create_run(make_run_config(), fork)
    for it in range(START, iterations):
        commit(store, name, it)
    return records


def commit(store: ArtifactStore, name: str, it: int) -> None:
    records = RunRecords(store, name)
    files = {file: store.put_blob(ADAPTER, f"{name} {it} {file}".encode()) for file in ("weights", "config", "probe")}
    adapter = AdapterRef(name=name, version=it, **files).to_json()
    state, samples = (store.put_blob(kind, f"{name} {it}".encode()).to_json() for kind in (STATE, "samples"))
    records.commit_step(it, make_step_record(store, step="train_step", outputs={"state": state}))
    records.commit_step(it, make_step_record(store, outputs={"samples": samples}))
    records.commit_iteration(it, {"state": state, "adapter": adapter, "samples": samples, "position": it})


def has_checkpoint(store: ArtifactStore, records: RunRecords, it: int) -> bool:
    """Whether all of it is there; part of one is a fault."""
    commit = records.iteration_commit(it)
    assert commit is not None
    assert store.has_blob(BlobRef.from_json(commit["samples"]))
    refs = [commit["state"], *(commit["adapter"][file] for file in ("weights", "config", "probe"))]
    (there,) = {store.has_blob(BlobRef.from_json(ref)) for ref in refs}
    return there


def checkpoints(store: ArtifactStore, records: RunRecords) -> list[int]:
    count = records.first_uncommitted()
    return [it for it in range(START, count) if has_checkpoint(store, records, it)]


def pruned(store: ArtifactStore, keep_last: int, keep_every: int | None = None, *runs: str) -> Prunable:
    """What was found, after it was deleted."""
    thinning = Thinning(runs=runs or ("night", "day"), keep_last=keep_last, keep_every=keep_every)
    found = prunable(store, thinning, now=time.time())
    assert all(prune(store, found.blobs))
    return found


def test_only_what_no_record_refers_to_goes_where_no_checkpoint_is_given_up(store: ArtifactStore, age):
    records = run_of(store, "night", 3)
    store.write("runs/night/reward_curve.png", b"\x89PNG")
    lost = store.put_blob(STATE, b"of a step that was killed before its record")
    age(GRACE_S + 60)
    found = prunable(store, None, now=time.time())
    assert [blob.key for blob in found.blobs] == [lost.key]
    assert found.iterations == {}
    assert list(prune(store, found.blobs)) == [True]
    assert not store.has_blob(lost)
    assert checkpoints(store, records) == [START, 0, 1, 2]


def test_what_is_young_stays_though_no_record_refers_to_it(store: ArtifactStore, age):
    run_of(store, "night", 3)
    store.put_blob(STATE, b"of a step that runs")
    age(GRACE_S - 60)
    assert prunable(store, Thinning(runs=["night"], keep_last=1), now=time.time()).blobs == []


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "stay"),
    [(1, None, [6]), (3, None, [4, 5, 6]), (9, None, range(7)), (1, 3, [0, 3, 6]), (2, 4, [0, 4, 5, 6])],
)
def test_checkpoints_of_old_iterations_go_and_that_of_the_start_stays(
    store: ArtifactStore, age, keep_last: int, keep_every: int | None, stay: list[int]
):
    records = run_of(store, "night", 7)
    age(GRACE_S + 60)
    found = pruned(store, keep_last, keep_every)
    assert checkpoints(store, records) == [START, *stay]
    assert found.iterations == ({"night": 7 - len(stay)} if len(stay) < 7 else {})
    assert len(found.blobs) == 4 * (7 - len(stay))
    again = pruned(store, keep_last, keep_every)
    assert (again.blobs, again.iterations) == ([], {})


def test_only_the_runs_that_are_named_lose_checkpoints(store: ArtifactStore, age):
    night, day = run_of(store, "night", 3), run_of(store, "day", 3)
    age(GRACE_S + 60)
    assert pruned(store, 1, None, "day").iterations == {"day": 2}
    assert checkpoints(store, night) == [START, 0, 1, 2]
    assert checkpoints(store, day) == [START, 2]


def test_outputs_of_an_iteration_that_is_not_committed_stay(store: ArtifactStore, age):
    records = run_of(store, "night", 2)
    state = store.put_blob(STATE, b"trained, not committed")
    record = make_step_record(store, step="train_step", outputs={"state": state.to_json()})
    records.commit_step(2, record)
    age(GRACE_S + 60)
    pruned(store, 1)
    assert records.valid(record)
    assert checkpoints(store, records) == [START, 1]


def test_state_that_another_run_has_too_stays(store: ArtifactStore, age):
    night = run_of(store, "night", 2)
    first = night.iteration_commit(0)
    assert first is not None
    day = RunRecords(store, "day")
    day.create_run(make_run_config())
    day.commit_iteration(START, {"state": first["state"]})
    age(GRACE_S + 60)
    pruned(store, 1)
    assert store.has_blob(BlobRef.from_json(first["state"]))


def test_state_that_a_fork_will_start_from_stays_until_the_fork_has_begun(store: ArtifactStore, age):
    night = run_of(store, "night", 4)
    run_of(store, "day", START, fork=Fork(run="night", iteration=1))
    age(GRACE_S + 60)
    pruned(store, 1)
    assert checkpoints(store, night) == [START, 1, 3]
    commit(store, "day", START)
    pruned(store, 1)
    assert checkpoints(store, night) == [START, 3]


def test_fork_of_an_iteration_without_its_state_is_refused_with_what_there_is(store: ArtifactStore, age):
    run_of(store, "night", 3)
    age(GRACE_S + 60)
    pruned(store, 1)
    with pytest.raises(ConfigError, match=r"--fork: the state after iteration 1 of night is no longer in .*-1"):
        run_of(store, "day", START, fork=Fork(run="night", iteration=1))
    assert RunRecords(store, "day").run_document() is None
    run_of(store, "day", START, fork=Fork(run="night", iteration=2))


def test_blob_that_is_put_again_while_others_are_deleted_stays(store: ArtifactStore, age):
    lost = store.put_blob(STATE, b"of a step that is done again now")
    age(GRACE_S + 60)
    found = prunable(store, None, now=time.time())
    assert store.put_blob(STATE, b"of a step that is done again now") == lost
    assert list(prune(store, found.blobs)) == [False]
    assert store.has_blob(lost)
    assert prunable(store, None, now=time.time()).blobs == []


def test_grace_is_long_enough_for_what_is_not_put_again(store: ArtifactStore, age):
    """A blob that is too fresh to be written again cannot be old when its step has had half of the grace to end."""
    store.put_blob(STATE, b"state")
    age(FRESH_S - 60)
    store.put_blob(STATE, b"state")
    assert prunable(store, None, now=time.time() + GRACE_S - FRESH_S).blobs == []


def test_nothing_is_deleted_where_a_record_cannot_be_read(store: ArtifactStore, age):
    run_of(store, "night", 3)
    age(GRACE_S + 60)
    store.write("runs/night/it00001/rollout.json", b"{")
    with pytest.raises(StoreError, match=r"it00001/rollout.json: not JSON"):
        prunable(store, Thinning(runs=["night"], keep_last=1), now=time.time())
