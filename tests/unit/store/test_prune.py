"""What is deleted, and above all what is not. Blobs count as old once a test has aged them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import START, AdapterRef, ArtifactStore, BlobRef, Fork, RunRecords, open_store
from lora_rl.store.artifact_store import FRESH_S
from lora_rl.store.prune import GRACE_S, QUEUED, Prunable, Thinning, prunable, prune
from lora_rl.store.refs import ADAPTER, STATE
from tests.builders import make_run_config, make_step_record


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path)))


@pytest.fixture
def age(tmp_path: Path) -> Callable[[float], None]:
    """Makes all blobs so many seconds old."""

    def age(seconds: float) -> None:
        then = time.time() - seconds
        for blob in (tmp_path / "cas").rglob("*"):
            os.utime(blob, (then, then))

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


def test_state_that_a_fork_starts_from_stays_until_the_fork_cannot_start_again(store: ArtifactStore, age):
    """Another config takes back the fork's start, which refers to the state, until its first iteration is committed."""
    night = run_of(store, "night", 4)
    run_of(store, "day", START, fork=Fork(run="night", iteration=1))
    age(GRACE_S + 60)
    pruned(store, 1)
    assert checkpoints(store, night) == [START, 1, 3]
    commit(store, "day", START)
    pruned(store, 1)
    assert checkpoints(store, night) == [START, 1, 3]
    commit(store, "day", 0)
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
    run_of(store, "night", START)
    lost = store.put_blob(STATE, b"of a step that is done again now")
    age(GRACE_S + 60)
    found = prunable(store, None, now=time.time())
    assert store.put_blob(STATE, b"of a step that is done again now") == lost
    assert list(prune(store, found.blobs)) == [False]
    assert store.has_blob(lost)
    assert prunable(store, None, now=time.time()).blobs == []


def test_grace_is_long_enough_for_what_is_not_put_again(store: ArtifactStore, age):
    """A blob that is too fresh to be written again cannot be old when its step has had half of the grace to end."""
    run_of(store, "night", START)
    store.put_blob(STATE, b"state")
    age(FRESH_S - 60)
    store.put_blob(STATE, b"state")
    assert prunable(store, None, now=time.time() + GRACE_S - FRESH_S).blobs == []


@pytest.mark.parametrize("name", ["attempts", "start", "starts", "it00001", "runs", "cas", "run.json", "COMMIT.json"])
def test_run_may_have_any_name_that_a_part_of_a_key_has(store: ArtifactStore, age, name: str):
    records = run_of(store, name, 3)
    records.begin_attempt(3, "rollout")
    age(GRACE_S + 60)
    assert prunable(store, None, now=time.time()).blobs == []
    assert pruned(store, 1, None, name).iterations == {name: 2}
    assert checkpoints(store, records) == [START, 2]


def test_iterations_of_six_digits_are_ordered_by_number(store: ArtifactStore, age):
    records = RunRecords(store, "night")
    records.create_run(make_run_config())
    for it in (99_999, 100_000, 100_001):
        folder = f"runs/night/it{it:05d}"
        store.replace(f"{folder}/COMMIT.json", {"state": store.put_blob(STATE, f"{it}".encode()).to_json()})
    age(GRACE_S + 60)
    assert pruned(store, 1).iterations == {"night": 2}
    (left,) = store.blobs()
    assert records.iteration_commit(100_001) == {"state": {"key": left.key, "sha256": left.key[-64:], "size": 6}}


@pytest.mark.parametrize("gap", [0, 3, 5])
def test_run_whose_commit_was_taken_back_goes_on_from_a_checkpoint(store: ArtifactStore, age, gap: int):
    records = run_of(store, "night", 7)
    store.delete(f"runs/night/it{gap:05d}/COMMIT.json")
    age(GRACE_S + 60)
    pruned(store, 1)
    assert has_checkpoint(store, records, records.first_uncommitted() - 1)
    assert has_checkpoint(store, records, gap - 1)


@pytest.mark.parametrize("linked", ["runs", "runs/night", "runs/night/it00001"])
def test_records_in_a_folder_that_is_a_link_are_read(store: ArtifactStore, age, tmp_path: Path, linked: str):
    records = run_of(store, "night", 3)
    disk = tmp_path / "another_disk"
    (tmp_path / linked).rename(disk)
    (tmp_path / linked).symlink_to(disk)
    age(GRACE_S + 60)
    assert prunable(store, None, now=time.time()).blobs == []
    pruned(store, 1)
    assert checkpoints(store, records) == [START, 2]


def test_nothing_is_deleted_where_there_are_blobs_and_no_record(store: ArtifactStore, age, tmp_path: Path):
    """As where the disk of the records is not mounted."""
    assert prunable(store, None, now=time.time()).blobs == []
    run_of(store, "night", 3)
    (tmp_path / "runs").rename(tmp_path / "unmounted")
    (tmp_path / "runs").mkdir()
    age(GRACE_S + 60)
    with pytest.raises(StoreError, match="runs: holds no record, so every blob would be deleted; bring the records"):
        prunable(store, None, now=time.time())


@pytest.mark.parametrize("name", ["cas/state/.nfs0001", "cas/state/.DS_Store", "cas/state/notes.txt", "cas/README"])
def test_file_that_is_no_blob_is_none_of_its_business(store: ArtifactStore, age, tmp_path: Path, name: str):
    run_of(store, "night", 3)
    (tmp_path / name).write_text("not ours")
    age(GRACE_S + 60)
    assert len(pruned(store, 1).blobs) == 8
    assert (tmp_path / name).read_text() == "not ours"


def test_clock_or_time_of_a_blob_that_is_behind_deletes_nothing(store: ArtifactStore, age):
    run_of(store, "night", 3)
    age(-5 * GRACE_S)
    assert prunable(store, Thinning(runs=["night"], keep_last=1), now=time.time()).blobs == []
    age(GRACE_S + 60)
    assert prunable(store, Thinning(runs=["night"], keep_last=1), now=time.time() - 3600).blobs == []


INTERRUPTED = """
import sys, time
from lora_rl.config import StoreConfig
from lora_rl.store import open_store
from lora_rl.store.prune import prunable, prune
store = open_store(StoreConfig(uri=sys.argv[1]))
deleting = prune(store, prunable(store, None, now=time.time()).blobs)
next(deleting)
raise KeyboardInterrupt  # while the caller is busy: nobody closes the generator
"""


def test_deleting_ends_soon_after_it_was_interrupted(store: ArtifactStore, age, tmp_path: Path):
    run_of(store, "night", START)
    (tmp_path / "cas" / STATE).mkdir(parents=True)
    for number in range(4 * QUEUED):
        (tmp_path / "cas" / STATE / f"{number:064x}").touch()
    age(GRACE_S + 60)
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, tmp_path], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert len(store.blobs()) >= 3 * QUEUED
    assert all(prune(store, prunable(store, None, now=time.time()).blobs))
    assert store.blobs() == []


def test_nothing_is_deleted_where_a_record_cannot_be_read(store: ArtifactStore, age):
    run_of(store, "night", 3)
    age(GRACE_S + 60)
    store.write("runs/night/it00001/rollout.json", b"{")
    with pytest.raises(StoreError, match=r"it00001/rollout.json: not JSON"):
        prunable(store, Thinning(runs=["night"], keep_last=1), now=time.time())
