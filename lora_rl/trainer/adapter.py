"""What an adapter and its progress are, apart from its numbers. Free of torch."""

from dataclasses import dataclass

from lora_rl.config import AdapterConfig
from lora_rl.trainer.targets import fused_layer, select_modules


@dataclass(frozen=True, kw_only=True)
class Lora:
    """One B [N, R] for each projection, and one A [R, K] for each projection or, with `shared_a`, fused layer."""

    modules: tuple[str, ...]
    """Full names of the projections, in the model's order."""
    rank: int
    scaling: float
    """Factor on B·A·x."""
    dropout: float = 0.0
    shared_a: bool = False
    """The covered projections among q, k, v of a layer have one A, and so have those among gate and up."""

    @property
    def tensors(self) -> list[str]:
        """Name of each tensor, in order: each A before the first B that it belongs to."""
        both = ((self.name_of_a(module), self.name_of_b(module)) for module in self.modules)
        return list(dict.fromkeys(name for names in both for name in names))

    def name_of_a(self, module: str) -> str:
        """`<projection>.lora_A.weight`; a shared one is named after the fused layer, `linear_qkv` or `linear_fc1`."""
        return f"{fused_layer(module) if self.shared_a else module}.lora_A.weight"

    def name_of_b(self, module: str) -> str:
        """`<projection>.lora_B.weight`."""
        return f"{module}.lora_B.weight"


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
        shared_a=adapter.type == "lora",
    )
