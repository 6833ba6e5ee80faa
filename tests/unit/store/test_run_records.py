import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from lora_rl.config import RunConfig, StoreConfig
from lora_rl.config.run import NOT_PART_OF_THE_RESULT, SAME_BITS
from lora_rl.errors import CommitConflict, ConfigError, DataError, StoreError
from lora_rl.store import START, ArtifactStore, Fork, RunRecords, open_store, versions
from lora_rl.store.local_objects import LocalObjects
from tests.builders import make_run_config, make_step_record


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path)))


@pytest.fixture
def records(store: ArtifactStore) -> RunRecords:
    return RunRecords(store, "night")


def paths_of(section: type[BaseModel]) -> set[str]:
    """Every field of a section, by dotted path, those of its sections included."""
    found = set()
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= {f"{name}.{path}" for path in paths_of(inner)}
        else:
            found.add(name)
    return found


def begin(records: RunRecords, config: RunConfig) -> None:
    """Records the run and commits its first iteration."""
    records.create_run(config)
    records.commit_iteration(START, {})
    records.commit_iteration(0, {})


def test_run_of_the_same_config_is_the_one_that_exists(records: RunRecords):
    config = make_run_config()
    begin(records, config)
    first = records.run_document()
    assert first is not None
    assert first["config"] == config.model_dump(mode="json")
    assert (first["config_sha256"], first["versions"]) == (config.sha256, versions())
    assert records.create_run(make_run_config(iterations=9)) == first == records.run_document()


def test_run_of_another_config_is_refused_with_each_difference_that_decides(records: RunRecords):
    begin(records, make_run_config())
    with pytest.raises(ConfigError) as caught:
        records.create_run(make_run_config(iterations=9, seed=1, adapter={"rank": 16}, trainer={"threads": 4}))
    assert str(caught.value).splitlines() == [
        "run night: exists with another config (stored -> given)",
        "  adapter.rank: 32 -> 16",
        "  seed: 0 -> 1",
        "use another --run-name, or the config that the run was made with",
    ]
    assert records.config() == make_run_config()


def test_another_config_takes_the_place_of_a_run_that_has_committed_no_iteration(records: RunRecords):
    records.create_run(make_run_config(trainer={"threads": 4}))
    records.commit_iteration(START, {"state": "of the first config"})
    config = make_run_config(seed=1, sampling={"max_prompt_tokens": 99})
    assert records.create_run(config) == records.run_document()
    assert records.config() == config
    assert records.iteration_commit(START) is None
    records.commit_iteration(START, {"state": "of the second"})


def test_run_that_is_given_again_keeps_what_it_starts_from(records: RunRecords, caplog: pytest.LogCaptureFixture):
    first = records.create_run(make_run_config())
    start = records.commit_iteration(START, {"state": "a"})
    later = make_run_config(trainer={"threads": 4})
    assert records.create_run(later) == first
    assert (records.config(), records.iteration_commit(START), caplog.messages) == (later, start, [])


# Each text that tells a user to change one of these is a dead end where the run is then refused.
LATER = {
    "deadlines": {"train_s": 7200},
    "placement": {"mode": "colocated"},
    "trainer": {"recompute": True, "max_tokens_per_gpu": 8192, "max_skipped_steps": 9, "data_parallel": 2},
    "engine": {"replicas": 2, "probe_tolerance": 0.5, "kv_cache_gib": 1, "tensor_parallel": 2},
    "reward": {"workers": 9, "deadline_s": 60},
    "algorithm": {"max_mismatch": None, "dynamic_sampling": {"max_rounds": 9}},
}


@pytest.mark.parametrize("section", LATER)
def test_how_a_run_is_executed_is_taken_as_last_given(records: RunRecords, section: str):
    before = {"algorithm": {"dynamic_sampling": {}}}
    begin(records, make_run_config(**before))
    later = make_run_config(**before | {section: LATER[section]})
    records.create_run(later)
    assert records.config() == later != make_run_config(**before)
    assert later.sha256 == make_run_config(**before).sha256


def test_run_whose_rows_have_changed_is_refused(records: RunRecords):
    begin(records, make_run_config(data={"uri": "/here/x.jsonl", "digest": "a" * 64}))
    records.create_run(make_run_config(data={"uri": "/there/x.jsonl", "digest": "a" * 64}))
    with pytest.raises(DataError, match=r"night: the rows of its data have changed .*'a+' -> 'b+'\); put back those"):
        records.create_run(make_run_config(data={"uri": "/here/x.jsonl", "digest": "b" * 64}))


def test_rows_of_a_run_recorded_without_a_digest_are_those_in_the_same_place(records: RunRecords):
    begin(records, make_run_config())
    with pytest.raises(ConfigError, match=r"data\.uri: 'x\.jsonl' -> 'y\.jsonl'"):
        records.create_run(make_run_config(data={"uri": "y.jsonl", "digest": "a" * 64}))
    records.create_run(make_run_config(data={"uri": "x.jsonl", "digest": "a" * 64}))
    with pytest.raises(DataError, match="have changed"):
        records.create_run(make_run_config(data={"uri": "x.jsonl", "digest": "b" * 64}))


def test_fork_remembers_where_it_came_from(store: ArtifactStore, records: RunRecords):
    records.create_run(make_run_config())
    for it in (START, 0):
        records.commit_iteration(it, {"state": store.put_blob("state", f"after {it}".encode()).to_json()})
    fork, other = Fork(run="night", iteration=0), RunRecords(store, "day")
    other.create_run(make_run_config(seed=1), fork)
    other.create_run(make_run_config(seed=2))
    assert other.origin() == records.iteration_commit(0)
    assert records.origin() is None
    other.commit_iteration(0, {})
    other.create_run(make_run_config(seed=2), fork)
    with pytest.raises(ConfigError, match="--fork: run day exists and began otherwise"):
        other.create_run(make_run_config(seed=2), Fork(run="night", iteration=-1))


@pytest.mark.parametrize("fork", [Fork(run="night", iteration=1), Fork(run="nobody", iteration=0)])
def test_fork_of_what_is_not_committed_is_refused_and_nothing_is_written(
    store: ArtifactStore, records: RunRecords, fork: Fork
):
    begin(records, make_run_config())
    other = RunRecords(store, "day")
    with pytest.raises(ConfigError, match=rf"--fork: iteration {fork.iteration} of {fork.run} is not committed"):
        other.create_run(make_run_config(), fork)
    assert other.run_document() is None


def test_what_is_said_to_be_executed_or_to_leave_the_bits_is_a_field():
    paths = paths_of(RunConfig) | set(RunConfig.model_fields)
    assert {path.replace("dynamic_sampling.max_rounds", "dynamic_sampling") for path in NOT_PART_OF_THE_RESULT} <= paths
    assert set(SAME_BITS) <= paths


def test_one_warning_tells_that_results_go_on_rounded_otherwise(records: RunRecords, caplog: pytest.LogCaptureFixture):
    begin(records, make_run_config())
    records.create_run(make_run_config(trainer={"recompute": True, "max_skipped_steps": 9}, reward={"workers": 9}))
    assert caplog.messages == []
    later = make_run_config(trainer={"data_parallel": 2, "max_tokens_per_gpu": 8192}, engine={"threads": 3})
    records.create_run(later)
    assert caplog.messages == [
        "run night: goes on correctly, but no longer bit for bit: engine.threads: 2 -> 3; "
        "trainer.data_parallel: 1 -> 2; trainer.max_tokens_per_gpu: 4096 -> 8192"
    ]
    records.create_run(later)
    assert len(caplog.messages) == 1


def test_run_of_other_versions_goes_on_with_one_warning(
    records: RunRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    begin(records, make_run_config())
    upgraded = versions() | {"torch": "99.0", "prefect": "99.0"}
    monkeypatch.setattr("lora_rl.store.run_records.versions", lambda: upgraded)
    for _ in range(2):
        records.create_run(make_run_config())
    (message,) = caplog.messages
    assert message == f"run night: goes on with other versions: torch: {versions()['torch']!r} -> '99.0'"


def test_run_recorded_before_a_field_existed_goes_on_under_its_default(store: ArtifactStore, records: RunRecords):
    begin(records, make_run_config())
    document = records.run_document()
    assert document is not None
    del document["config"]["adapter"]["optimizer"]["weight_decay"], document["config"]["algorithm"]["icepop"]
    store.replace("runs/night/run.json", document)
    store.replace("runs/night/settings.json", {"deadlines": {"train_s": 7200}})  # as older versions wrote it
    assert records.config() == make_run_config(deadlines={"train_s": 7200})
    records.create_run(make_run_config())
    with pytest.raises(ConfigError, match=r"adapter\.optimizer\.weight_decay: 0\.0 -> 0\.1"):
        records.create_run(make_run_config(adapter={"optimizer": {"weight_decay": 0.1}}))


def test_run_whose_config_is_of_another_version_says_which(store: ArtifactStore, records: RunRecords):
    begin(records, make_run_config())
    document = records.run_document()
    assert document is not None
    document["config"]["adapter"]["gone"], document["versions"]["lora-rl"] = 1, "0.0.7"
    store.replace("runs/night/run.json", document)
    store.delete("runs/night/settings.json")
    with pytest.raises(ConfigError, match=r"its config is none of this version \(adapter\.gone: .* lora-rl 0\.0\.7"):
        records.create_run(make_run_config())


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


def test_records_before_the_first_iteration_stand_apart(store: ArtifactStore, records: RunRecords):
    records.commit_step(START, make_step_record(store))
    records.begin_attempt(START, "rollout")
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


def test_iterations_wanted_are_those_last_given(records: RunRecords):
    for iterations in (3, 9, 5):
        records.create_run(make_run_config(iterations=iterations))
        assert records.iterations_wanted() == iterations


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
