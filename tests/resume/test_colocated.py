"""Colocated roles take turns; on a CPU nothing moves, but the same calls are made in the same order."""

import pytest

from tests.resume.conftest import ITERATIONS, new_run, results

TURNS = ("sleep_s", "onload_s", "offload_s", "wake_s")


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_a_colocated_run_takes_turns_and_ends_with_the_same_bits(drive, tmp_path, uninterrupted):
    store = f"file://{tmp_path}"
    records = new_run("turns", store, "placement.mode=colocated")
    drive("turns", store, "engine", "begin", "hot_load", "1")
    assert results(records) == uninterrupted
    for it in range(ITERATIONS):
        moved = {
            step: {name for name in record.metrics if name.startswith("time/") and name.endswith(TURNS)}
            for step in ("rollout", "train_step", "export_adapter", "hot_load")
            if (record := records.step_record(it, step))
        }
        assert moved["train_step"] == {"time/sleep_s", "time/onload_s"}
        assert moved["export_adapter"] == set()
        assert moved["rollout"] == set()
        if it == 0:
            assert moved["hot_load"] == {"time/offload_s", "time/wake_s"}
        else:  # the engine was killed: another starts, awake
            assert "time/wake_s" not in moved["hot_load"]
