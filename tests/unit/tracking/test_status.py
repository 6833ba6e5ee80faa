"""A run's state is read from its records alone."""

import pytest

from lora_rl.config import StoreConfig
from lora_rl.store import STEPS, RunRecords, open_store, promote_adapter
from lora_rl.tracking import run_status, runs_overview
from lora_rl.tracking import status as module
from tests.builders import make_adapter, make_run_config, make_step_record


@pytest.fixture
def artifacts(tmp_path):
    return open_store(StoreConfig(uri=str(tmp_path)))


@pytest.fixture
def records(artifacts):
    records = RunRecords(artifacts, "night")
    records.create_run(make_run_config())
    records.commit_iteration(-1, {"adapter": make_adapter(artifacts, version=0).to_json()})
    return records


def _commit_iteration(artifacts, records, it: int) -> None:
    steps = {step: {"state": "committed", "seconds": 1.0, "executions": 1} for step in STEPS}
    adapter = make_adapter(artifacts, version=it + 1).to_json()
    records.commit_iteration(
        it, {"it": it, "adapter": adapter, "reward_mean": 0.5, "metrics": {"train/lr": 1e-4}, "steps": steps}
    )


def test_a_run_that_has_not_begun_has_no_iterations_but_the_adapter_it_starts_from(artifacts, records):
    status = run_status(artifacts, records, "night")
    assert (status["run"], status["config_sha256"], status["iterations"]) == ("night", make_run_config().sha256, [])
    assert status["adapter"]["iteration"] == -1


def test_committed_iterations_and_the_adapter_of_the_last_are_shown(artifacts, records):
    for it in range(2):
        _commit_iteration(artifacts, records, it)
    status = run_status(artifacts, records, "night")
    assert [iteration["it"] for iteration in status["iterations"]] == [0, 1]
    assert status["iterations"][1]["metrics"] == {"train/lr": 1e-4}
    weights = make_adapter(artifacts, version=2).weights
    assert status["adapter"] == {
        "sha256": weights.sha256,
        "uri": artifacts.uri(weights.key),
        "directory": None,
        "iteration": 1,
    }


def test_the_directory_of_the_last_adapter_is_named_only_while_it_holds_that_one(artifacts, records):
    _commit_iteration(artifacts, records, 0)
    uri = promote_adapter(artifacts, "night", make_adapter(artifacts, version=1))
    assert run_status(artifacts, records, "night")["adapter"]["directory"] == uri
    _commit_iteration(artifacts, records, 1)
    assert run_status(artifacts, records, "night")["adapter"]["directory"] is None


def test_a_run_is_running_while_it_begins_steps_and_done_with_its_last_iteration(artifacts, records, monkeypatch):
    def progress() -> tuple[str, int, int]:
        report = run_status(artifacts, records, "night")
        return report["state"], report["iterations_done"], report["iterations_wanted"]

    _commit_iteration(artifacts, records, 0)
    assert progress() == ("running", 1, 3)
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    assert progress() == ("stopped", 1, 3)
    for it in (1, 2):
        _commit_iteration(artifacts, records, it)
    assert progress() == ("done", 3, 3)


def test_the_last_update_is_the_last_step_begun_or_the_last_commit(artifacts, records):
    _commit_iteration(artifacts, records, 0)
    assert run_status(artifacts, records, "night")["updated"] == records.iteration_commit(0)["committed"]
    records.begin_attempt(1, "rollout")
    records.begin_attempt(1, "reward")
    assert run_status(artifacts, records, "night")["updated"] == records.begun(1, "reward")[0]


def test_all_runs_of_the_store_are_shown(artifacts, records):
    RunRecords(artifacts, "day").create_run(make_run_config(iterations=1))
    _commit_iteration(artifacts, records, 0)
    shown = [(run["run"], run["iterations_done"], run["reward_mean"]) for run in runs_overview(artifacts)]
    assert shown == [("day", 0, None), ("night", 1, 0.5)]


def test_the_iteration_under_way_says_how_far_it_is(artifacts, records):
    _commit_iteration(artifacts, records, 0)
    records.begin_attempt(1, "rollout")
    records.begin_attempt(1, "rollout")
    records.commit_step(1, make_step_record(artifacts, step="rollout"))
    records.begin_attempt(1, "reward")
    under_way = run_status(artifacts, records, "night")["iterations"][1]
    assert under_way["it"] == 1
    assert under_way["steps"]["rollout"] == {"state": "committed", "seconds": 1.5, "executions": 2}
    assert under_way["steps"]["reward"] == {"state": "begun", "seconds": None, "executions": 1}
    assert under_way["steps"]["train_step"] == {"state": "pending", "seconds": None, "executions": 0}
