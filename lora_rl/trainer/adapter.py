"""What an adapter and its progress are, apart from its numbers. Free of torch."""

from dataclasses import dataclass

from lora_rl.config import AdapterConfig
from lora_rl.trainer.targets import select_modules


@dataclass(frozen=True, kw_only=True)
class Lora:
    """One A [R, K] and one B [N, R] for each projection."""

    modules: tuple[str, ...]
    """Full names of the projections, in the model's order."""
    rank: int
    scaling: float
    """Factor on B·A·x."""
    dropout: float = 0.0

    @property
    def tensors(self) -> list[tuple[str, str]]:
        """Projection and name of each tensor, in order: `<projection>.lora_A.weight`, `<projection>.lora_B.weight`."""
        return [(module, f"{module}.lora_{letter}.weight") for module in self.modules for letter in "AB"]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How far an adapter's training has come."""

    steps: int = 0
    """Optimizer steps taken."""
    samples: int = 0
    """Samples seen, those of skipped steps too: the learning rate follows them."""
    skipped_in_a_row: int = 0
    """Steps skipped since the last one whose gradient was finite."""


def lora_of(adapter: AdapterConfig, num_layers: int) -> Lora:
    """The adapter that a config asks for. Raises ConfigError for names that match no projection."""
    return Lora(
        modules=select_modules(adapter, num_layers),
        rank=adapter.rank,
        scaling=adapter.scaling,
        dropout=adapter.dropout,
    )
