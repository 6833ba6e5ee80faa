"""What an adapter and its progress are, apart from its numbers. Free of torch."""

from dataclasses import dataclass

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError
from lora_rl.trainer.targets import all_modules, covered_modules, fused_layer, matches, target_faults


@dataclass(frozen=True, kw_only=True)
class Lora:
    """One B [N, R] for each projection, and one A [R, K] for each projection or, with `shared_a`, fused layer.

    For the projections of a layer's E experts the tensors are [E, N, R] and [E, R, K].
    """

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


def adapter_faults(adapter: AdapterConfig, num_layers: int | None = None, *, sparse: bool = False) -> list[str]:
    """Every name in `adapter` that stands for nothing, as `field: value, rule; mend`.

    Without `num_layers` a pattern may name any layer; `sparse` says whether the model's layers have experts.
    """
    faults = target_faults(adapter, num_layers, sparse=sparse)
    # A misspelt target must not make a right `only_train` look wrong.
    everything = all_modules(num_layers, sparse=sparse)
    modules = everything if faults else covered_modules(adapter, num_layers, sparse=sparse)
    only_train = adapter.only_train
    if only_train is not None and not only_train:
        faults.append("adapter.only_train: is empty, nothing would be trained; name a projection, or give null for all")
    faults += [
        f"adapter.only_train: {pattern!r} matches nothing that the adapter covers; name a covered projection, lora_A, "
        "lora_B, or a pattern such as *.layers.0.* or *.q_proj.lora_B"
        for pattern in only_train or ()
        if not any(_trains(pattern, module, letter) for module in modules for letter in "AB")
    ]
    return faults


def lora_of(adapter: AdapterConfig, num_layers: int, *, sparse: bool = False) -> Lora:
    """The adapter that a config asks for. Raises ConfigError for all names that stand for nothing."""
    faults = adapter_faults(adapter, num_layers, sparse=sparse)
    if faults:
        raise ConfigError("\n".join(faults))
    return Lora(
        modules=covered_modules(adapter, num_layers, sparse=sparse),
        rank=adapter.rank,
        scaling=adapter.scaling,
        dropout=adapter.dropout,
        shared_a=adapter.type == "lora",
    )


def frozen_tensors(adapter: AdapterConfig, lora: Lora) -> frozenset[str]:
    """Names of the tensors that stay as they start. A shared A is trained where any of its projections' A is."""
    if adapter.only_train is None:
        return frozenset()
    trained = {
        name
        for module in lora.modules
        for letter, name in (("A", lora.name_of_a(module)), ("B", lora.name_of_b(module)))
        if any(_trains(pattern, module, letter) for pattern in adapter.only_train)
    }
    return frozenset(lora.tensors) - trained


def _trains(pattern: str, module: str, letter: str) -> bool:
    return matches(module, pattern, ends=("", f".lora_{letter}", f".lora_{letter}.weight"))
