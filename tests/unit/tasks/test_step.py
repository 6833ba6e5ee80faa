"""Fingerprint, reuse and commit."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger
from prefect.states import Failed

from lora_rl.config import RunConfig
from lora_rl.errors import ActorLost, CommitConflict, EngineError
from lora_rl.store import ArtifactStore, StepRecord, fingerprint
from tasks import export_adapter, new_adapter, reward, train_step
from tasks import rollout as rollout_task
from tasks.context import Iteration
from tasks.step import StepResult, _lost_actor, run_step
from tests.builders import make_step_record


class Body:
    """Puts a blob and counts how often it was asked to."""

    def __init__(self, artifacts: ArtifactStore, content: bytes = b"samples", error: Exception | None = None) -> None:
        self.artifacts, self.content, self.error, self.calls = artifacts, content, error, 0

    async def __call__(self) -> StepResult:
        self.calls += 1
        if self.error:
            raise self.error
        outputs = {"samples": self.artifacts.put_blob("samples", self.content)}
        return StepResult(outputs=outputs, metrics={"reward/total/mean": 0.5}, values={"position": 8})


@pytest.fixture(autouse=True)
def no_prefect_run() -> Iterator[None]:
    with disable_run_logger():
        yield


async def rollout(at: Iteration, body: Body, **changed: str) -> State | StepRecord:
    return await run_step(at, "rollout", inputs={"adapter": "a"} | changed, config={"n": 4}, body=body)


async def test_what_a_step_made_is_committed(at, artifacts) -> None:
    made = await rollout(at, Body(artifacts))
    assert isinstance(made, StepRecord)
    assert at.records.step_record(1, "rollout") == made
    assert artifacts.get_blob(made.output("samples")) == b"samples"
    assert (made.metrics, made.values, made.attempt) == ({"reward/total/mean": 0.5}, {"position": 8}, 1)


async def test_step_with_the_same_inputs_is_reused_and_not_executed(at, artifacts) -> None:
    body = Body(artifacts)
    made = await rollout(at, body)
    again = await rollout(at, body)
    assert isinstance(again, State)
    assert again.name == "Reused"
    assert await again.aresult() == made
    assert (body.calls, at.records.attempts(1, "rollout")) == (1, 1)


async def test_step_with_other_inputs_is_done_again(at, artifacts) -> None:
    await rollout(at, Body(artifacts))
    made = await rollout(at, Body(artifacts, b"others"), adapter="b")
    assert isinstance(made, StepRecord)
    assert artifacts.get_blob(made.output("samples")) == b"others"
    assert at.records.step_record(1, "rollout") == made
    assert made.attempt == 2


async def test_step_whose_output_is_gone_is_done_again(at, artifacts) -> None:
    body = Body(artifacts)
    made = await rollout(at, body)
    assert isinstance(made, StepRecord)
    artifacts.delete(made.output("samples").key)
    again = await rollout(at, body)
    assert isinstance(again, StepRecord)
    assert artifacts.get_blob(again.output("samples")) == b"samples"
    assert body.calls == 2


async def test_step_of_a_committed_iteration_is_final(at, artifacts) -> None:
    await rollout(at, Body(artifacts))
    at.records.commit_iteration(1, {"it": 1})
    with pytest.raises(CommitConflict, match="iteration 1: is committed, its steps are final"):
        await rollout(at, Body(artifacts), adapter="b")


async def test_step_that_fails_commits_nothing_and_counts_as_begun(at, artifacts) -> None:
    with pytest.raises(EngineError, match="engine: broken"):
        await rollout(at, Body(artifacts, error=EngineError("engine: broken")))
    assert at.records.step_record(1, "rollout") is None
    assert at.records.attempts(1, "rollout") == 1


@pytest.mark.parametrize(("error", "again"), [(ActorLost("x"), True), (EngineError("x"), False), (OSError("x"), False)])
async def test_only_a_lost_actor_is_worth_another_try(error: Exception, again: bool) -> None:
    assert await _lost_actor(None, None, Failed(data=error)) is again  # pyright: ignore[reportArgumentType]


async def digests_of_steps(at: Iteration, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The fingerprint that each step of an iteration, and of the start, would be committed with."""
    found = {}

    async def run_step(at: Iteration, name: str, *, inputs: Any, config: Any, body: Any) -> None:
        found[name] = fingerprint(name, inputs, config, at.config.seed)

    record = make_step_record(at.artifacts)
    trained = make_step_record(at.artifacts, outputs={"state": at.state.to_json()})
    calls = ((rollout_task,), (reward, record), (train_step, record), (export_adapter, trained), (new_adapter,))
    for task, *arguments in calls:
        body = task.__wrapped__
        monkeypatch.setattr(sys.modules[body.__module__], "run_step", run_step)
        await body(at, *arguments)
    return found


async def test_fingerprints_do_not_follow_how_a_step_is_executed(at, monkeypatch) -> None:
    later = {
        "trainer": {"data_parallel": 2, "recompute": True},
        "engine": {"replicas": 3, "probe_tolerance": 1.0},
        "reward": {"workers": 9, "deadline_s": 60},
        "algorithm": {"max_mismatch": None, "dynamic_sampling": {"max_rounds": 9}},
    }
    values = at.config.model_dump(mode="json")
    before = replace(at, config=RunConfig.model_validate(values | {"algorithm": {"dynamic_sampling": {}}}))
    same = replace(at, config=RunConfig.model_validate(values | later))
    digests = await digests_of_steps(before, monkeypatch)
    assert sorted(digests) == ["export_adapter", "new_adapter", "reward", "rollout", "train_step"]
    assert await digests_of_steps(same, monkeypatch) == digests
    other = replace(at, config=RunConfig.model_validate(values | later | {"seed": 1}))
    assert not digests.items() & (await digests_of_steps(other, monkeypatch)).items()
