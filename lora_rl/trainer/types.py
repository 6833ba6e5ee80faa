"""What goes into and comes out of the trainer."""

from dataclasses import dataclass, field

from lora_rl.store.refs import AdapterRef, BlobRef


@dataclass(frozen=True, kw_only=True)
class StepReply:
    """A finished train step."""

    state: BlobRef
    """Adapter master weights, optimizer, schedule clock and RNG after the step."""
    stepped: bool
    """False where the gradient was not finite: the state is the one before, with its skip counter raised."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportReply:
    """An exported adapter."""

    adapter: AdapterRef
    metrics: dict[str, float] = field(default_factory=dict)
