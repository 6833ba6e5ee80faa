"""What becomes of the engines' load beside an export that fails, with a plain object in the place of the trainer."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from lora_rl.cluster.actors import ActorGroup
from lora_rl.errors import TrainerError
from lora_rl.store import StepRecord
from tasks.context import Iteration
from tasks.export_adapter import export_adapter
from tests.builders import make_step_record


class Trainer(ActorGroup):
    """Fails to export, once the engines load."""

    def __init__(self, loading: asyncio.Event) -> None:
        super().__init__("trainer", [])
        self.loading = loading

    async def call_all(self, method: str, *, deadline_s: float, **arguments: Any) -> Any:
        if method == "hand_over":
            return "/nowhere"
        await self.loading.wait()
        raise TrainerError("export: no room")


@pytest.fixture
def trained(at: Iteration) -> StepRecord:
    return make_step_record(at.artifacts, outputs={"state": at.artifacts.put_blob("state", b"s").to_json()})


async def test_an_export_that_fails_ends_the_load_beside_it(
    at: Iteration, trained: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()
    ended = []

    async def stage(*_: Any) -> None:
        loading.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stage")

    async def trainer(*_: Any) -> Trainer:
        return Trainer(loading)

    async def run_body(*_: Any, body: Any, **__: Any) -> None:
        await body()

    module = sys.modules[export_adapter.__module__]
    monkeypatch.setattr(module, "stage", stage)
    monkeypatch.setattr(module, "run_step", run_body)
    monkeypatch.setattr(module, "roles", SimpleNamespace(trainer=trainer))
    with disable_run_logger(), pytest.raises(TrainerError, match="no room"):
        await export_adapter.__wrapped__(at, trained)  # pyright: ignore[reportFunctionMemberAccess]
    assert ended == ["stage"]
