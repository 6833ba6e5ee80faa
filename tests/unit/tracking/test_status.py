"""A run's state is read from its records alone."""

import pytest

from lora_rl.config import StoreConfig
from lora_rl.store import STEPS, RunRecords, open_store
from lora_rl.tracking import run_status
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
    assert status["adapter"] == {"sha256": weights.sha256, "uri": artifacts.uri(weights.key), "iteration": 1}


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
