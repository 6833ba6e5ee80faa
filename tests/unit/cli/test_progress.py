import io
from pathlib import Path

import pytest
from rich.console import Console

from lora_rl.cli import progress
from lora_rl.config import StoreConfig
from lora_rl.errors import StoreError
from lora_rl.store import STEPS, RunRecords, open_store
from tests.processes import wait_until


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecords:
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    return RunRecords(open_store(StoreConfig(uri=str(tmp_path))), "run")


def commit(records: RunRecords, it: int) -> None:
    steps = {step: {"state": "committed", "seconds": 1.5, "executions": 1} for step in STEPS}
    records.commit_iteration(it, {"it": it, "reward_mean": 0.25, "metrics": {}, "steps": steps})


def test_each_commit_is_printed_once_and_those_before_the_start_are_not(records: RunRecords) -> None:
    output = io.StringIO()
    commit(records, 0)
    with progress.show_progress(Console(file=output, width=200), "run", records, 3):
        commit(records, 1)
        wait_until(lambda: "it    1" in output.getvalue(), "the line of iteration 1")
        commit(records, 2)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("run it")]
    assert [line.split()[2] for line in lines] == ["1", "2"]
    assert "reward   0.250" in lines[0]


def test_store_that_fails_for_a_moment_does_not_end_the_display(
    records: RunRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    polls: list[int] = []
    read = records.iteration_commit
    monkeypatch.setattr(records, "iteration_commit", lambda it: (polls.append(it), read(it))[1])
    obstacle = tmp_path / "runs" / "run" / "it00000" / "COMMIT.json"
    with progress.show_progress(Console(file=output, width=200), "run", records, 2):
        obstacle.mkdir(parents=True)
        with pytest.raises(StoreError, match="read failed"):
            read(0)
        seen = len(polls)
        wait_until(lambda: len(polls) > seen + 1, "another look at the store")
        obstacle.rmdir()
        commit(records, 0)
        wait_until(lambda: "it    0" in output.getvalue(), "the line of iteration 0")
