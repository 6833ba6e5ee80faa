"""Invariant 1: a killed run ends with the same bits as an undisturbed one; no committed step is done again."""

from pathlib import Path

import pytest

from lora_rl.store import STEPS
from tests.resume.conftest import ITERATIONS, new_run, results

KILLED_IN = 1
"""The iteration whose commits are fatal: it has one before it to start from."""


@pytest.fixture(params=["file", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}" if request.param == "file" else request.getfixturevalue("s3_store_uri") + "/kill"


@pytest.mark.integration
@pytest.mark.timeout(3600)
def test_driver_killed_before_and_after_every_commit_ends_bit_identical(drive, store_uri, uninterrupted):
    records = new_run("killed", store_uri)
    for commit in (*STEPS, "COMMIT"):
        drive("killed", store_uri, "driver", "before", commit, str(KILLED_IN))
        drive("killed", store_uri, "driver", "after", commit, str(KILLED_IN))
    drive("killed", store_uri)
    assert results(records) == uninterrupted
    assert len(uninterrupted) == ITERATIONS
    # before its commit each step was executed once in vain; after it, never again
    assert {step: records.attempts(KILLED_IN, step) for step in STEPS} == dict.fromkeys(STEPS, 2)
    assert {step: records.attempts(0, step) for step in STEPS} == dict.fromkeys(STEPS, 1)


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("victims", "when", "step"),
    [
        pytest.param("trainer", "begin", "train_step", id="trainer"),
        pytest.param("engine", "begin", "rollout", id="engine"),
        pytest.param("engine+trainer+rollout+driver", "after", "train_step", id="all"),
    ],
)
def test_killed_actors_are_started_again_and_the_run_ends_bit_identical(
    drive, tmp_path, uninterrupted, victims, when, step
):
    store = f"file://{tmp_path}"
    records = new_run("survivor", store)
    drive("survivor", store, victims, when, step, str(KILLED_IN))
    if "driver" in victims:
        drive("survivor", store)
    assert results(records) == uninterrupted
    # a death at the beginning costs an execution, or none where it is seen before the first call
    assert records.attempts(KILLED_IN, step) <= (2 if when == "begin" else 1)
