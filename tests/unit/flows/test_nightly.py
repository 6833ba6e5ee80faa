"""Which run a night has."""

import os
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from flows.nightly import create_run_of
from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError
from lora_rl.store import RunRecords, open_store

TINY = Path(__file__).parents[3] / "examples" / "tiny.yaml"
NIGHT = datetime(2026, 11, 30, 1, 30, tzinfo=UTC)


@pytest.fixture
def overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("LORA_RL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("LORA_RL_STORE", raising=False)
    return [f"store.uri=file://{tmp_path}/store", "iterations=7"]


def test_a_night_s_run_is_named_by_the_date_and_a_retry_finds_it(overrides: list[str], tmp_path: Path) -> None:
    tonight = create_run_of(str(TINY), overrides, NIGHT)
    assert (tonight.run_name, tonight.iterations) == ("tiny-20261130", 7)
    records = RunRecords(open_store(StoreConfig(uri=f"{tmp_path}/store")), "tiny-20261130")
    document = records.run_document()
    assert document is not None
    assert document["config"]["run_name"] == "tiny-20261130"
    assert create_run_of(str(TINY), overrides, NIGHT + timedelta(hours=20)) == tonight
    assert records.run_document() == document
    assert create_run_of(str(TINY), overrides, NIGHT + timedelta(days=1)).run_name == "tiny-20261201"


def test_the_date_is_that_of_utc(overrides: list[str]) -> None:
    west = timezone(timedelta(hours=-8))
    assert create_run_of(str(TINY), overrides, datetime(2026, 11, 29, 22, 0, tzinfo=west)).run_name == "tiny-20261130"


def test_the_environment_s_store_is_that_of_a_config_without_one(overrides, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LORA_RL_STORE", f"file://{tmp_path}/elsewhere")
    assert create_run_of(str(TINY), overrides, NIGHT).store.uri == f"file://{tmp_path}/store"
    without = [override for override in overrides if not override.startswith("store.uri=")]
    assert create_run_of(str(TINY), without, NIGHT).store.uri == f"file://{tmp_path}/elsewhere"


def test_a_config_with_faults_makes_no_run(overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.rank"):
        create_run_of(str(TINY), [*overrides, "adapter.rank=0"], NIGHT)
    with pytest.raises(ConfigError, match="no_such_grader"):
        create_run_of(str(TINY), [*overrides, "reward.terms=[{name: no_such_grader}]"], NIGHT)
    assert not (tmp_path / "store" / "runs").exists()
