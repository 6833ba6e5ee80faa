"""What goes into and comes out of the rollout engine."""

from dataclasses import dataclass, field
from enum import StrEnum

from lora_rl.data.types import FinishReason


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Log-probabilities of K next tokens after a fixed prompt, by the trainer, with the adapter on and off.

    `token_ids`, `logp` and `logp_base` have length K; temperature 1.
    """

    prompt_tokens: list[int]
    token_ids: list[int]
    logp: list[float]
    logp_base: list[float]


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One answer to draw."""

    id: str
    """Sample id; unique within a batch."""
    prompt_tokens: list[int]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer drawn. `tokens` and `logp` have the same length."""

    id: str
    tokens: list[int]
    text: str
    logp: list[float]
    """Log-probability of each token at the sampling temperature."""
    finish_reason: FinishReason
    adapter_version: str
    adapter_digest: str


class PublishOutcome(StrEnum):
    LOADED = "loaded"
    ALREADY_LOADED = "already_loaded"


@dataclass(frozen=True, kw_only=True)
class PublishReply:
    """What a publish did."""

    outcome: PublishOutcome
    version: str
    digest: str
    seconds: dict[str, float]
    """By stage: transfer, load, probe; first_token is the part of the probe until the version's first token."""
    probe_error: float
    """Mean |logp engine - logp trainer| on the probe; 0 when already loaded."""
    probe_effect: float
    """Largest |logp with - logp without the adapter| in the engine."""
    resident: list[str] = field(default_factory=list)
    """Versions loaded after this call, oldest first."""
