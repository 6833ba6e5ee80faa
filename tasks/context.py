"""What a step starts from: refs only, read from the store."""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lora_rl.config import RunConfig, StoreConfig
from lora_rl.errors import ConfigError
from lora_rl.models import resolve_model
from lora_rl.store import START, AdapterRef, ArtifactStore, BlobRef, RunRecords, open_store

SESSION = uuid.uuid4().hex
"""This driver. What a standing actor has opened for another is opened again: graders and rows may have changed."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run before its first iteration."""

    run: str
    n: int = START
    config: RunConfig
    artifacts: ArtifactStore
    records: RunRecords
    model_path: Path

    @property
    def store(self) -> StoreConfig:
        return self.config.store

    def __repr__(self) -> str:
        return f"{self.run}/{'start' if self.n == START else f'it{self.n}'}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Iteration(Start):
    """One iteration of a run, and what the one before it committed."""

    state: BlobRef
    """Train state."""
    adapter: AdapterRef
    """The same as a PEFT adapter."""
    position: int
    """Rows of the prompt source consumed so far."""


async def open_start(run: str, store: str) -> Start:
    """`run` in the store at the URI `store`."""
    return await asyncio.to_thread(lambda: Start(**_opened(run, store)))


async def open_iteration(run: str, n: int, store: str) -> Iteration:
    """Iteration `n` of `run`. Raises ConfigError where the one before it is not committed."""
    return await asyncio.to_thread(_open_iteration, run, n, store)


def _open_iteration(run: str, n: int, store: str) -> Iteration:
    opened = _opened(run, store)
    before = opened["records"].iteration_commit(n - 1)
    if before is None:
        raise ConfigError(f"iteration {n} of {run}: the one before it is not committed; run that first")
    return Iteration(
        **opened,
        n=n,
        state=BlobRef.from_json(before["state"]),
        adapter=AdapterRef.from_json(before["adapter"]),
        position=before["position"],
    )


def _opened(run: str, store: str) -> dict[str, Any]:
    where = StoreConfig(uri=store).absolute()
    artifacts = open_store(where)
    records = RunRecords(artifacts, run)
    config = records.config().model_copy(update={"store": where})
    return {
        "run": run,
        "config": config,
        "artifacts": artifacts,
        "records": records,
        "model_path": resolve_model(config.model.name),
    }
