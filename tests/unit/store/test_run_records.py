import threading
from pathlib import Path

import pytest

from lora_rl.config import DeadlineConfig, PlacementConfig, RunConfig, StoreConfig
from lora_rl.errors import CommitConflict, ConfigError, StoreError
from lora_rl.store import ArtifactStore, RunRecords, open_store
from lora_rl.store.local_objects import LocalObjects
from tests.builders import make_step_record


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path)))


@pytest.fixture
def records(store: ArtifactStore) -> RunRecords:
    return RunRecords(store, "night")


CONFIG = {"run_name": "night", "iterations": 3, "seed": 0, "adapter": {"rank": 8}, "store": {"uri": "x"}}


def test_run_of_the_same_config_is_the_one_that_exists(records: RunRecords):
    first = records.create_run(CONFIG, "d1")
    assert first["config"] == CONFIG
    assert first["versions"]["python"]
    assert records.create_run({**CONFIG, "iterations": 9}, "d1") == first == records.run_document()


def test_run_of_another_config_is_refused_with_each_difference_that_decides(records: RunRecords):
    records.create_run(CONFIG, "d1")
    with pytest.raises(ConfigError) as caught:
        records.create_run({**CONFIG, "iterations": 9, "seed": 1, "adapter": {"rank": 16}, "store": {}}, "d2")
    assert str(caught.value).splitlines() == [
        "run night: exists with another config (stored -> given)",
        "  adapter.rank: 8 -> 16",
        "  seed: 0 -> 1",
        "use another --run-name, or the config that the run was made with",
    ]


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".."])
def test_run_whose_name_leaves_its_folder_is_refused(store: ArtifactStore, name: str):
    with pytest.raises(ConfigError, match="run name"):
        RunRecords(store, name)


def test_commits_are_read_in_their_order_and_side_by_side(records: RunRecords, monkeypatch: pytest.MonkeyPatch):
    for it in range(3):
        records.commit_iteration(it, {"it": it})
    assert [commit["it"] for commit in records.iteration_commits(3)] == [0, 1, 2]
    assert records.iteration_commits(0) == []
    together, read = threading.Barrier(3), LocalObjects.read
    monkeypatch.setattr(LocalObjects, "read", lambda *given: together.wait(timeout=10) >= 0 and read(*given))
    assert len(records.iteration_commits(3)) == 3


def test_step_and_flow_run_names_that_leave_their_folder_are_refused(records: RunRecords):
    with pytest.raises(ConfigError, match="step"):
        records.step_record(0, "../x")
    with pytest.raises(ConfigError, match="flow run"):
        records.pin_start("../x", 0)


def test_committed_step_is_read_back_from_its_iteration(store: ArtifactStore, records: RunRecords):
    record = make_step_record(store)
    assert records.step_record(12, "rollout") is None
    assert records.commit_step(12, record) == record == records.step_record(12, "rollout")
    assert store.list("runs") == ["runs/night/it00012/rollout.json"]


@pytest.mark.parametrize("it", [None, -1])
def test_records_before_the_first_iteration_stand_apart(store: ArtifactStore, records: RunRecords, it: int | None):
    records.commit_step(it, make_step_record(store))
    records.begin_attempt(it, "rollout")
    assert store.list("runs") == ["runs/night/start/attempts/rollout-1.json", "runs/night/start/rollout.json"]


def test_second_writer_of_a_step_adopts_the_first_record(store: ArtifactStore, records: RunRecords):
    first = records.commit_step(0, make_step_record(store, attempt=1, seconds=1.0))
    other = make_step_record(store, attempt=2, outputs={"samples": store.put_blob("samples", b"other").to_json()})
    assert RunRecords(store, "night").commit_step(0, other) == first


def test_second_writer_with_other_inputs_is_a_conflict(store: ArtifactStore, records: RunRecords):
    records.commit_step(0, make_step_record(store))
    with pytest.raises(CommitConflict, match=r"it00000/rollout.json: .*inputs adapter: 'a+' -> 'b'.*--run-name"):
        records.commit_step(0, make_step_record(store, fingerprint="e" * 64, inputs={"adapter": "b"}))
    with pytest.raises(CommitConflict, match="same inputs: config, seed or code differ"):
        records.commit_step(0, make_step_record(store, fingerprint="e" * 64))


def test_step_is_not_committed_without_its_outputs(store: ArtifactStore, records: RunRecords):
    record = make_step_record(store)
    store.delete(record.outputs["samples"]["key"])
    with pytest.raises(StoreError, match="an output is missing from the store"):
        records.commit_step(0, record)
    assert records.step_record(0, "rollout") is None


@pytest.mark.parametrize("loss", [lambda store, key: store.delete(key), lambda store, key: store.write(key, b"cut")])
def test_record_whose_output_is_lost_is_invalid_and_gives_way(store: ArtifactStore, records: RunRecords, loss):
    record = records.commit_step(0, make_step_record(store))
    assert records.valid(record)
    loss(store, record.outputs["samples"]["key"])
    assert not records.valid(record)
    again = make_step_record(store, outputs={"samples": store.put_blob("samples", b"again").to_json()}, attempt=2)
    assert records.commit_step(0, again) == again == records.step_record(0, "rollout")


def test_discarded_record_can_be_committed_anew_until_its_iteration_is(store: ArtifactStore, records: RunRecords):
    records.commit_step(0, make_step_record(store))
    records.discard_step(0, "rollout")
    assert records.step_record(0, "rollout") is None
    other = make_step_record(store, fingerprint="e" * 64)
    assert records.commit_step(0, other) == other
    records.commit_iteration(0, {})
    with pytest.raises(CommitConflict, match="iteration 0: is committed"):
        records.discard_step(0, "rollout")


def test_attempts_count_executions_of_each_step_apart(store: ArtifactStore, records: RunRecords):
    assert records.attempts(0, "rollout") == 0
    assert [records.begin_attempt(0, "rollout") for _ in range(3)] == [1, 2, 3]
    assert RunRecords(store, "night").begin_attempt(0, "rollout") == 4
    assert records.begin_attempt(0, "reward") == records.begin_attempt(1, "rollout") == 1
    at = [(0, "rollout"), (0, "reward"), (1, "rollout"), (2, "rollout")]
    assert [records.attempts(it, step) for it, step in at] == [4, 1, 1, 0]


def test_iteration_commit_is_idempotent_and_dated(store: ArtifactStore, records: RunRecords):
    assert records.iteration_commit(0) is None
    first = records.commit_iteration(0, {"state": "a", "position": 16})
    assert first["committed"].endswith("+00:00")
    assert RunRecords(store, "night").commit_iteration(0, {"position": 16, "state": "a"}) == first
    assert records.iteration_commit(0) == first


def test_iteration_commit_of_another_document_is_a_conflict(records: RunRecords):
    records.commit_iteration(0, {"state": "a"})
    with pytest.raises(CommitConflict, match=r"COMMIT.json: another document was committed .*state: 'a' -> 'b'"):
        records.commit_iteration(0, {"state": "b"})


def test_iterations_are_committed_without_gaps(records: RunRecords):
    records.commit_iteration(0, {})
    with pytest.raises(StoreError, match="iteration 2: iteration 1 is not committed"):
        records.commit_iteration(2, {})
    assert records.iteration_commit(2) is None


class CountingObjects(LocalObjects):
    reads = 0

    def read(self, key: str, size: int = 0) -> bytes | None:
        self.reads += 1
        return super().read(key, size)


def test_first_uncommitted_iteration_is_found_for_every_count(tmp_path: Path):
    store = open_store(StoreConfig(uri=str(tmp_path)))
    for done in range(40):
        assert RunRecords(store, "night").first_uncommitted() == done
        assert RunRecords(store, "night").first_uncommitted(start=done // 2) == done
        RunRecords(store, "night").commit_iteration(done, {})


def test_first_uncommitted_iteration_costs_few_reads_however_long_the_run(tmp_path: Path):
    objects = CountingObjects(tmp_path)
    store = ArtifactStore(objects)
    for n in range(3000):
        (tmp_path / f"runs/night/it{n:05d}").mkdir(parents=True)
        (tmp_path / f"runs/night/it{n:05d}/COMMIT.json").write_text('{"done":true}')
    records = RunRecords(store, "night")
    assert records.first_uncommitted() == 3000
    assert objects.reads <= 26  # 2 log2(3000) + 2
    objects.reads = 0
    assert records.first_uncommitted() == 3000
    assert objects.reads == 1
    records.commit_iteration(3000, {"done": True})
    objects.reads = 0
    assert records.first_uncommitted() == 3001
    assert objects.reads <= 3


def test_start_beyond_the_commits_is_not_remembered(records: RunRecords):
    records.commit_iteration(0, {})
    assert records.first_uncommitted(start=5) == 5
    assert records.first_uncommitted() == 1


def test_flow_run_keeps_the_iteration_it_began_with(store: ArtifactStore, records: RunRecords):
    assert records.pin_start("flow-1", 3) == 3
    assert RunRecords(store, "night").pin_start("flow-1", 7) == 3
    assert records.pin_start("flow-2", 7) == 7


def test_iteration_commit_adopts_one_that_differs_only_in_how_it_was_executed(records: RunRecords):
    first = records.commit_iteration(0, {"state": "a", "steps": {"rollout": {"executions": 1}}})
    assert records.commit_iteration(0, {"state": "a", "steps": {"rollout": {"executions": 2}}}) == first


def test_deadlines_and_placement_given_later_act_on_an_existing_run(records: RunRecords):
    config = RunConfig.model_validate({"iterations": 2, "model": {"name": "m"}, "data": {"type": "file", "uri": "x"}})
    records.create_run(config.model_dump(mode="json"), config.sha256)
    changes = {"deadlines": DeadlineConfig(train_s=7200), "placement": PlacementConfig(mode="colocated")}
    later = config.model_copy(update=changes)
    records.create_run(later.model_dump(mode="json"), later.sha256)
    assert records.config().deadlines.train_s == 7200
    assert (config.placement.mode, records.config().placement.mode) == ("disaggregated", "colocated")
    assert records.config().sha256 == config.sha256
