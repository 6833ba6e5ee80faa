"""A trainer in this process, and a store beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.data.types import Sample
from lora_rl.store import BlobRef, open_store
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.state_io import TrainState, decode_state
from lora_rl.trainer.types import AdapterBatch

UNCLIPPED = OptimizerConfig(lr=1e-3, betas=(0.9, 0.95), clip_grad_norm=None)
SAMPLING = SamplingConfig()
ALGORITHM = AlgorithmConfig(max_mismatch=None)


@dataclass(frozen=True)
class Stepped:
    """One adapter after its step."""

    metrics: dict[str, float]
    state: TrainState
    ref: BlobRef

    def gradient(self, betas: tuple[float, float] = UNCLIPPED.betas) -> dict[str, Tensor]:
        """What the first step was taken by: the first moment began at zero."""
        return {name: moment / (1 - betas[0]) for name, moment in self.state.moments["exp_avg"].items()}


class BenchTrainer:
    """Starts and ends with its block."""

    def __init__(self, model: Path, dtype: str, scratch: Path, **options: Any) -> None:
        self.actor = TrainerActor(model_path=model, dtype=dtype, trainer=TrainerConfig(**options))
        self.config = StoreConfig(uri=f"file://{scratch}/store")
        self.store = open_store(self.config)

    def __enter__(self) -> Self:
        self.device = self.actor.start()["device"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.actor.shutdown()

    def put(self, samples: Sequence[Sample]) -> BlobRef:
        return self.store.put_blob("samples", write_samples(list(samples)))

    def start(self, adapter: AdapterConfig, seed: int = 0) -> BlobRef:
        """A new state of `adapter`."""
        return self.actor.new_state(store=self.config, adapter=adapter, seed=seed)

    def batch(self, adapter: AdapterConfig, start: BlobRef, samples: BlobRef) -> AdapterBatch:
        return AdapterBatch(adapter=adapter, start=start, samples=samples, algorithm=ALGORITHM, sampling=SAMPLING)

    def step(self, batches: Sequence[AdapterBatch]) -> list[Stepped]:
        """Each adapter after one step; their samples go through the model together."""
        metrics = self.actor.forward_backward(store=self.config, batches=batches, seed=0)
        stepped = []
        for batch in batches:
            name = batch.adapter.name
            optim = self.actor.optim_step(adapter=batch.adapter)
            ref = self.actor.save_state(store=self.config, adapter=batch.adapter)
            state = decode_state(self.store.get_blob(ref), ref.key)
            stepped.append(Stepped(metrics[name] | optim.metrics, state, ref))
        return stepped


def relative_gap(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Largest difference over all tensors, relative to the largest value of `theirs`."""
    gap = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    return gap / max(float(value.abs().max()) for value in theirs.values())
