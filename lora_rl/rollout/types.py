"""What goes into and comes out of a rollout."""

from dataclasses import dataclass, field
from typing import Protocol

from lora_rl.config import SamplingConfig
from lora_rl.engine.types import Completion, GenerateRequest
from lora_rl.store.refs import BlobRef


class EngineClient(Protocol):
    """One engine replica, local or remote."""

    async def generate(
        self, *, version: str, requests: list[GenerateRequest], sampling: SamplingConfig, batch_id: str
    ) -> list[Completion]:
        """One completion for each request, in order. When cancelled, the engine aborts the batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolloutReply:
    """A finished rollout."""

    samples: BlobRef
    """Parquet of P * G samples, the G of a prompt side by side."""
    position: int
    """Data position at which the next rollout begins."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GradeReply:
    """Graded samples."""

    samples: BlobRef
    """Parquet of the same samples, with rewards."""
    preview: str
    """Some of them as a markdown table."""
    metrics: dict[str, float] = field(default_factory=dict)
