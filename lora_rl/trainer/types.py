"""What goes into and comes out of the trainer."""

from dataclasses import dataclass, field

from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig
from lora_rl.store.refs import AdapterRef, BlobRef


@dataclass(frozen=True, kw_only=True)
class AdapterBatch:
    """One adapter's samples for one optimizer step."""

    adapter: AdapterConfig
    start: BlobRef
    """State that the step starts from."""
    samples: BlobRef
    algorithm: AlgorithmConfig
    sampling: SamplingConfig


@dataclass(frozen=True, kw_only=True)
class OptimReply:
    """What the optimizer did with the gradient."""

    stepped: bool
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepReply:
    """A finished train step."""

    state: BlobRef
    """Adapter master weights, optimizer, schedule clock and RNG after the step."""
    stepped: bool
    """False where the gradient was not finite (the state is the one before, with its skip counter raised) or zero
    everywhere (all advantages zero): then only the sample clock goes on."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportReply:
    """An exported adapter."""

    adapter: AdapterRef
    metrics: dict[str, float] = field(default_factory=dict)
