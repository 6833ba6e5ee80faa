"""Models, adapters and engines for the benchmarks that serve: real small models, and large ones with random weights."""

import gc
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, make_checkpoint
from lora_rl.config import AdapterConfig, EngineConfig, StoreConfig, TrainerConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.home import home
from lora_rl.models import resolve_model
from lora_rl.models.build import build_directory
from lora_rl.models.tiny import make_tokenizer
from lora_rl.store import AdapterRef, BlobRef
from lora_rl.trainer.actor import TrainerActor

TOKENIZER_VOCABULARY = 512
GRAPH_SIZES = (1, 8, 16, 64, 128, 256)
"""Few, so that the engine starts in a minute."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the rank of its adapters, on all linear layers."""

    model: str
    """A model's name or directory, or one of SHAPES."""
    dtype: str
    rank: int

    @property
    def text(self) -> str:
        weights = "random weights, " if self.model in SHAPES else ""
        return f"{self.model}, {weights}{self.dtype}, rank {self.rank}"


def checkpoint(case: Case) -> Path:
    """The model's directory. One with random weights is drawn on the GPU at first, and kept in `$LORA_RL_HOME`."""
    if case.model not in SHAPES:
        return resolve_model(case.model)
    path = home() / "models" / f"random-{case.model}"
    if not path.exists():
        print(f"drawing {case.model} into {path}", flush=True)
        build_directory(path, lambda directory: _draw(case, directory))
    return path


def _draw(case: Case, directory: Path) -> None:
    make_checkpoint(SHAPES[case.model], directory, device="cuda" if torch.cuda.is_available() else "cpu")
    make_tokenizer(TOKENIZER_VOCABULARY).save_pretrained(directory)
    _free_gpu()


def _free_gpu() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Exporter:
    """A trainer that exports fresh adapters: A is random and B zero, in their full size."""

    def __init__(self, case: Case, path: Path, store: StoreConfig) -> None:
        self._case, self._store = case, store
        self._trainer = TrainerActor(
            model_path=path, dtype=case.dtype, trainer=TrainerConfig(max_rank=case.rank, threads=2)
        )
        self._trainer.start()

    def state(self, name: str, seed: int) -> BlobRef:
        """A state in the trainer's slot."""
        adapter = self._adapter(name)
        state = self._trainer.new_state(store=self._store, adapter=adapter, seed=seed)
        self._trainer.load_state(store=self._store, adapter=adapter, state=state)
        return state

    def hand_over(self, name: str, state: BlobRef, version: int) -> str | None:
        """The state in memory that an engine can load from."""
        return self._trainer.hand_over(
            store=self._store,
            adapter=self._adapter(name),
            state=state,
            version=version,
            base_model_name=self._case.model,
        )

    def export(
        self, name: str, state: BlobRef, version: int, store: StoreConfig, handed_over: str | None = None
    ) -> AdapterRef:
        """The exported state, in `store`."""
        return self._trainer.export_adapter(
            store=store,
            adapter=self._adapter(name),
            state=state,
            version=version,
            base_model_name=self._case.model,
            handed_over=handed_over,
        ).adapter

    def close(self) -> None:
        self._trainer.shutdown()
        _free_gpu()

    def _adapter(self, name: str) -> AdapterConfig:
        return AdapterConfig(name=name, rank=self._case.rank, alpha=2 * self._case.rank)


def make_engine(case: Case, path: Path, *, slots: int = 1, **options: Any) -> EngineActor:
    """Not yet started."""
    config = make_engine_config(**options)
    return EngineActor(model_path=str(path), dtype=case.dtype, engine=config, max_rank=case.rank, slots=slots)


def make_engine_config(**options: Any) -> EngineConfig:
    """Random weights make rounding in bfloat16 large: the probe allows for it."""
    return EngineConfig(kv_cache_gib=0.5, probe_tolerance=2.0, **options)


def memory_folder() -> str | None:
    """Where files lie in memory, if the system has such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def remove(store: StoreConfig) -> None:
    """Deletes a store of files."""
    shutil.rmtree(store.uri.removeprefix("file://"))
