"""Records that pass between data, engine, rewards and trainer."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """End-of-sequence token or a stop text."""
    LENGTH = "length"
    """`max_response_tokens` reached."""
    ABORT = "abort"
    """Cancelled; never trained."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One task put to the model."""

    id: str
    """`<epoch>/<row>`: unique in the run and the same after a resume."""
    text: str
    """The prompt after the chat template."""
    tokens: list[int]
    label: str | None
    """Reference answer."""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer. The lists `response_tokens` and `logp_rollout` have the same length."""

    id: str
    """`<prompt id>/<index in the group>`."""
    prompt_id: str
    """Samples of one group share it."""
    prompt_text: str
    prompt_tokens: list[int]
    response_text: str
    response_tokens: list[int]
    logp_rollout: list[float]
    """Log-probability of each response token under the engine's policy, at the sampling temperature."""
    finish_reason: FinishReason
    adapter_version: str
    """`<name>@<version>` that made every token."""
    adapter_digest: str
    """Digest of that version's weights, as the engine loaded them."""
    label: str | None
    metadata: dict[str, Any] = field(default_factory=dict)
    reward: float | None = None
    """None until graded; stays None where a failed grader says drop."""
    reward_details: dict[str, float | str] = field(default_factory=dict)
    """Score of each term, and `error` where a grader failed."""
