"""What a step was made of and what it made; the fingerprint that tells whether it need be done again."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from lora_rl.store.canonical import canonical_json, sha256_of
from lora_rl.store.refs import BlobRef
from lora_rl.store.versions import versions

STEPS = ("rollout", "reward", "train_step", "export_adapter", "hot_load")
"""The steps of an iteration, in their order."""


def utc_now() -> str:
    """This moment as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def fingerprint(step: str, inputs: Mapping[str, str], config: Mapping[str, Any], seed: int) -> str:
    """Digest of all that decides a step's result: `inputs` are digests by name, `config` the sections that it reads."""
    return sha256_of(canonical_json({"step": step, "inputs": dict(inputs), "config": dict(config), "seed": seed}))


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A run's iteration that another run starts after."""

    run: str
    iteration: int


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The commit record of one step of one iteration. It is written last: where it is, the outputs are."""

    step: str
    fingerprint: str
    inputs: dict[str, str]
    """Digest by name of what the step read."""
    outputs: dict[str, dict[str, Any]]
    """JSON of a BlobRef by name."""
    metrics: dict[str, float] = field(default_factory=dict)
    """May hold NaN and infinities; JSON has none, so these are kept as texts."""
    values: dict[str, Any] = field(default_factory=dict)
    """Small JSON results, such as the data position."""
    started: str
    """ISO 8601, UTC."""
    seconds: float
    attempt: int
    """Executions of this step so far, this one included."""
    versions: dict[str, str] = field(default_factory=versions)

    def output(self, name: str) -> BlobRef:
        """The blob that the step put under `name`."""
        return BlobRef.from_json(self.outputs[name])

    def to_json(self) -> dict[str, Any]:
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in self.metrics.items()}
        return {**asdict(self), "metrics": metrics}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StepRecord":
        return cls(**{**values, "metrics": {name: float(value) for name, value in values["metrics"].items()}})
