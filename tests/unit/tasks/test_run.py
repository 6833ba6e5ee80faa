import sys

import pytest

from lora_rl.config import RunConfig
from lora_rl.errors import CommitConflict, ConfigError
from lora_rl.store import START, ArtifactStore, Fork, RunRecords, StepRecord
from tasks.context import Start, open_iteration, open_start
from tasks.export_adapter import new_adapter
from tasks.run import _commit, begin_run
from tests.builders import make_adapter, make_step_record


async def test_run_goes_on_after_its_last_commit(records: RunRecords, store_uri: str) -> None:
    first, history = await begin_run("run", store_uri, 3, None)
    assert first == 1
    assert history == [records.iteration_commit(0)]


async def test_finished_run_has_nothing_left_to_do(records: RunRecords, store_uri: str) -> None:
    first, history = await begin_run("run", store_uri, 1, None)
    assert (first, len(history)) == (1, 1)


async def test_fewer_iterations_than_are_committed_are_refused(records: RunRecords, store_uri: str) -> None:
    commit = records.iteration_commit(0)
    assert commit is not None
    records.commit_iteration(1, commit | {"it": 1})
    with pytest.raises(ConfigError, match="iterations: 1, but 2 of run are committed; give 2 or more"):
        await begin_run("run", store_uri, 1, "flow-run")


async def test_retried_flow_run_begins_where_it_began_first(records: RunRecords, store_uri: str) -> None:
    assert (await begin_run("run", store_uri, 3, "flow-run"))[0] == 1
    commit = records.iteration_commit(0)
    assert commit is not None
    records.commit_iteration(1, commit | {"it": 1})
    first, history = await begin_run("run", store_uri, 3, "flow-run")
    assert (first, [commit["it"] for commit in history]) == (1, [0, 1])
    assert (await begin_run("run", store_uri, 3, "another"))[0] == 2


async def test_nothing_is_committed_under_a_config_that_was_replaced_meanwhile(
    artifacts: ArtifactStore, config: RunConfig, store_uri: str
) -> None:
    records = RunRecords(artifacts, "run")
    records.create_run(config)
    at = await open_start("run", store_uri)
    records.create_run(config.model_copy(update={"seed": 7}))
    with pytest.raises(CommitConflict, match=r"run/start: another command gave .* \(seed: 0 -> 7\); give one"):
        _commit(at, {})
    assert records.iteration_commit(START) is None
    _commit(await open_start("run", store_uri), {})


async def test_fork_starts_from_the_state_and_the_place_in_the_data_of_its_origin(
    records: RunRecords, artifacts: ArtifactStore, config: RunConfig, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def export_adapter(at: Start, made: StepRecord) -> StepRecord:
        files = make_adapter(artifacts, version=0).to_json()
        return make_step_record(artifacts, outputs={name: files[name] for name in ("weights", "config", "probe")})

    module = sys.modules[begin_run.__module__]
    monkeypatch.setattr(module, "export_adapter", export_adapter)
    monkeypatch.setattr(module, "new_adapter", new_adapter.__wrapped__)  # pyright: ignore[reportFunctionMemberAccess]
    origin = records.iteration_commit(0)
    assert origin is not None
    RunRecords(artifacts, "forked").create_run(config, Fork(run="run", iteration=0))
    await begin_run("forked", store_uri, 3, None)
    at = await open_iteration("forked", 0, store_uri)
    assert (at.state.to_json(), at.position, at.adapter.version) == (origin["state"], origin["position"], 0)
