"""Small JSON values that stand for bytes in the store; only these pass between tasks."""

from dataclasses import asdict, dataclass
from typing import Any

STATE, ADAPTER = "state", "adapter"
"""Kinds of the blobs that are a checkpoint: a train state, and an exported version's files."""


@dataclass(frozen=True, kw_only=True)
class BlobRef:
    """Content-addressed bytes at `<root>/<key>`."""

    key: str
    sha256: str
    size: int
    """Bytes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "BlobRef":
        return cls(key=values["key"], sha256=values["sha256"], size=values["size"])


@dataclass(frozen=True, kw_only=True)
class AdapterRef:
    """One exported version of an adapter: the two files of a PEFT directory and the trainer's probe of it."""

    name: str
    version: int
    """Optimizer steps behind it; 0 is the start."""
    weights: BlobRef
    """adapter_model.safetensors"""
    config: BlobRef
    """adapter_config.json"""
    probe: BlobRef
    """JSON of `engine.types.Probe`: what the trainer says of a fixed prompt under this version."""

    @property
    def label(self) -> str:
        """Name in requests and samples: `<name>@<version>`."""
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """Digest of the weights."""
        return self.weights.sha256

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "AdapterRef":
        files = {file: BlobRef.from_json(values[file]) for file in ("weights", "config", "probe")}
        return cls(name=values["name"], version=values["version"], **files)
