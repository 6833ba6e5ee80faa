"""What an iteration starts from: refs only, read from the store."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lora_rl.config import RunConfig, StoreConfig
from lora_rl.errors import ConfigError
from lora_rl.models import resolve_model
from lora_rl.store import AdapterRef, ArtifactStore, BlobRef, RunRecords, open_store

START = -1
"""Number under which the records before the first iteration stand."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One iteration of a run, and where it starts."""

    run: str
    n: int
    config: RunConfig
    artifacts: ArtifactStore
    records: RunRecords
    model_path: Path
    state: BlobRef | None
    """Train state after the iteration before; None before the first."""
    adapter: AdapterRef | None
    """Adapter exported by the iteration before; None before the first."""
    position: int
    """Rows of the prompt source consumed so far."""

    @property
    def store(self) -> StoreConfig:
        return self.config.store

    def __repr__(self) -> str:
        return f"{self.run}/it{self.n}"


async def open_iteration(run: str, n: int, store: str) -> Iteration:
    """Iteration `n` of `run` in the store at the URI `store`, starting where iteration n - 1 was committed."""
    return await asyncio.to_thread(_open_iteration, run, n, store)


def _open_iteration(run: str, n: int, store: str) -> Iteration:
    artifacts = open_store(StoreConfig(uri=store))
    records = RunRecords(artifacts, run)
    config = records.config()
    before = None if n == START else records.iteration_commit(n - 1)
    if n > 0 and before is None:
        raise ConfigError(f"iteration {n}: iteration {n - 1} of {run} is not committed; run that first")
    return Iteration(
        run=run,
        n=n,
        config=config.model_copy(update={"store": StoreConfig(uri=store)}),
        artifacts=artifacts,
        records=records,
        model_path=resolve_model(config.model.name),
        state=before and BlobRef.from_json(before["state"]),
        adapter=before and AdapterRef.from_json(before["adapter"]),
        position=before["position"] if before else 0,
    )
