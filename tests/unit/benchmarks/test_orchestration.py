from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.orchestration import age, cost_of
from lora_rl.config import StoreConfig
from lora_rl.store import STEPS, ArtifactStore, RunRecords, open_store
from tests.builders import make_adapter, make_step_record
from tests.tolerances import FORMULA

BEGIN = datetime(2026, 11, 29, 12, tzinfo=UTC)


def moment(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=str(tmp_path)))


def commit_at(store: ArtifactStore, run: str, it: int, seconds: float) -> None:
    store.create(f"runs/{run}/it{it:05d}/COMMIT.json", {"it": it, "committed": moment(seconds)})


def test_the_time_between_two_commits_is_split_into_steps_and_what_lies_around_them(store: ArtifactStore):
    records = RunRecords(store, "run")
    commit_at(store, "run", 0, 0)
    for number, step in enumerate(STEPS):  # of 2 s each, the first begins at 0.5 s, each next one 0.1 s after the last
        record = make_step_record(store, step=step, started=moment(0.5 + 2.1 * number), seconds=2.0)
        records.commit_step(1, record)
    commit_at(store, "run", 1, 11.2)
    cost = cost_of(records, 1)
    assert cost.wall == pytest.approx(11.2, abs=FORMULA)
    assert cost.steps == pytest.approx(10.0, abs=FORMULA)
    assert (cost.before, cost.between, cost.after) == pytest.approx((0.5, 0.4, 0.3), abs=FORMULA)
    assert cost.beyond_steps == pytest.approx(cost.before + cost.between + cost.after, abs=FORMULA)


def test_an_aged_run_goes_on_after_copies_that_differ_in_their_numbers_alone(store: ArtifactStore):
    source, aged = RunRecords(store, "source"), RunRecords(store, "aged")
    adapter = make_adapter(store, version=1)
    source.commit_iteration(-1, {"position": 0})
    source.commit_iteration(0, {"it": 0, "adapter": adapter.to_json(), "reward_mean": 0.25})
    age(aged, source, 0, 7)
    assert aged.first_uncommitted() == 7
    last = aged.iteration_commit(6)
    assert last is not None
    assert (last["it"], last["adapter"]["version"], last["reward_mean"]) == (6, 7, 0.25)
    assert last["adapter"]["weights"] == adapter.weights.to_json()


def test_a_run_cannot_be_aged_by_an_iteration_that_is_not_committed(store: ArtifactStore):
    with pytest.raises(LookupError, match="iteration 3: not committed"):
        age(RunRecords(store, "aged"), RunRecords(store, "source"), 3, 7)
