from pathlib import Path

import pytest

from lora_rl.errors import ConfigError
from lora_rl.store import RunRecords
from tasks.context import START, open_iteration, open_start


async def test_iteration_starts_from_what_the_one_before_committed(records: RunRecords, store_uri: str) -> None:
    at = await open_iteration("run", 1, store_uri)
    commit = records.iteration_commit(0)
    assert commit is not None
    assert (at.state.to_json(), at.adapter.to_json(), at.position) == (commit["state"], commit["adapter"], 4)
    assert repr(at) == "run/it1"


async def test_first_iteration_starts_from_the_start(records: RunRecords, store_uri: str) -> None:
    at = await open_iteration("run", 0, store_uri)
    assert (at.adapter.version, at.position) == (0, 0)
    start = await open_start("run", store_uri)
    assert (start.n, repr(start)) == (START, "run/start")


async def test_iteration_after_one_that_is_not_committed_is_refused(records: RunRecords, store_uri: str) -> None:
    with pytest.raises(ConfigError, match="iteration 2 of run: the one before it is not committed; run that first"):
        await open_iteration("run", 2, store_uri)


async def test_unknown_run_is_refused(records: RunRecords, store_uri: str) -> None:
    with pytest.raises(ConfigError, match="run nobody: not in the store file://"):
        await open_iteration("nobody", 0, store_uri)


async def test_a_store_that_was_moved_is_the_one_that_is_named(
    records: RunRecords, store_uri: str, tmp_path: Path
) -> None:
    (tmp_path / "store").rename(tmp_path / "moved")
    at = await open_iteration("run", 1, f"file://{tmp_path}/moved")
    assert at.store.uri == f"file://{tmp_path}/moved"
