"""Drivers that are killed, and runs to compare with."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lora_rl.config import load_config
from lora_rl.store import RunRecords, open_store

ROOT = Path(__file__).parents[2]
ITERATIONS = 2


@pytest.fixture
def drive(cluster_environment: dict[str, str]) -> Callable[..., None]:
    """Runs a driver process, with a fatal moment where `fate` is given, and checks that it ends as it must."""

    def drive(run: str, store: str, *fate: str) -> None:
        command = [sys.executable, "-m", "tests.resume.driver", run, store, str(ITERATIONS), *fate]
        done = subprocess.run(
            command, env=cluster_environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
        expected = -signal.SIGKILL if fate and "driver" in fate[0] else 0
        assert done.returncode == expected, f"{done.returncode} {fate}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"

    return drive


def new_run(run: str, store: str, *overrides: str) -> RunRecords:
    """A run of examples/tiny.yaml, recorded and not begun."""
    config = load_config(ROOT / "examples" / "tiny.yaml", [f"run_name={run}", f"store.uri={store}", *overrides])
    records = RunRecords(open_store(config.store), run)
    records.create_run(config)
    return records


def results(records: RunRecords) -> list[dict[str, Any]]:
    """What each iteration made, by digest."""
    commits = [records.iteration_commit(it) for it in range(ITERATIONS)]
    return [
        {what: commit[what]["sha256"] for what in ("state", "samples")}
        | {"adapter": commit["adapter"]["weights"]["sha256"]}
        for commit in commits
        if commit
    ]


@pytest.fixture(scope="session")
def uninterrupted(
    cluster_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Digests of a run that nothing disturbed."""
    store = f"file://{tmp_path_factory.mktemp('uninterrupted')}"
    records = new_run("uninterrupted", store)
    command = [sys.executable, "-m", "tests.resume.driver", "uninterrupted", store, str(ITERATIONS)]
    subprocess.run(command, env=cluster_environment, cwd=ROOT, check=True, timeout=600)
    return results(records)
