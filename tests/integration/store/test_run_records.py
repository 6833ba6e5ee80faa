"""A run's records and its promoted adapter, on a folder and on two S3 implementations."""

from pathlib import Path

import pytest

from lora_rl.errors import CommitConflict
from lora_rl.store import ArtifactStore, RunRecords, download_adapter, promote_adapter
from tests.builders import make_adapter, make_run_config, make_step_record

pytestmark = pytest.mark.integration


def test_run_is_recorded_and_resumed_by_another_process_view(store: ArtifactStore):
    RunRecords(store, "night").create_run(make_run_config())
    for n in range(5):
        records = RunRecords(store, "night")
        assert records.first_uncommitted() == n
        assert records.pin_start(f"flow-{n}", n) == n
        assert records.begin_attempt(n, "rollout") == 1
        assert records.begin_attempt(n, "rollout") == 2
        record = make_step_record(store, attempt=2)
        assert records.commit_step(n, record) == RunRecords(store, "night").step_record(n, "rollout") == record
        assert records.valid(record)
        records.commit_iteration(n, {"position": n})
    assert RunRecords(store, "night").attempts(4, "rollout") == 2
    assert RunRecords(store, "night").iteration_commit(4)["position"] == 4
    with pytest.raises(CommitConflict):
        RunRecords(store, "night").commit_step(0, make_step_record(store, fingerprint="e" * 64))


def test_record_whose_output_is_lost_gives_way(store: ArtifactStore):
    records = RunRecords(store, "night")
    record = records.commit_step(0, make_step_record(store))
    store.delete(record.outputs["samples"]["key"])
    assert not records.valid(record)
    again = make_step_record(store, attempt=2)
    records.commit_step(0, again)
    assert records.valid(records.step_record(0, "rollout"))


def test_adapter_is_promoted_twice_without_nesting_and_downloaded(store: ArtifactStore, tmp_path: Path):
    for version in (1, 2):
        assert promote_adapter(store, "night", make_adapter(store, version)) == store.uri("adapters/night/default")
        assert store.list("adapters") == [
            "adapters/night/default/adapter_config.json",
            "adapters/night/default/adapter_model.safetensors",
            "adapters/night/default/manifest.json",
        ]
    download_adapter(store, make_adapter(store, 2), tmp_path / "out")
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == b"weights of version 2"
