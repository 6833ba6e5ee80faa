"""Which projections an adapter covers. Free of torch: the config check refuses a name before anything is allocated.

A projection is named `model.layers.<layer>.<block>.<name>`, as in Hugging Face; `target_modules` holds short names,
Megatron's names, or patterns.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError

BLOCKS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
"""Projections of a layer in their order, and the block each is in."""

MEGATRON_NAMES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_fc2": ("down_proj",),
}
"""Megatron's names (fused, and as in its canonical LoRA) and the projections each stands for."""

FUSED = {"q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv"} | dict.fromkeys(
    ("gate_proj", "up_proj"), "linear_fc1"
)
"""Projections that Megatron computes together on one input, and the layer they are in."""

ALL_LINEAR = "all-linear"
SOME_LAYERS = 512
"""More layers than any model has: a pattern that matches none of these matches no model."""


def target_faults(adapter: AdapterConfig, num_layers: int | None = None) -> list[str]:
    """Every rule on names of projections that `adapter` breaks, as `field: value, rule; mend`.

    Without `num_layers` a pattern may name any layer.
    """
    faults = []
    names = _all_names(SOME_LAYERS if num_layers is None else num_layers)
    for field, patterns in (
        ("target_modules", _targets(adapter)),
        ("exclude_modules", adapter.exclude_modules),
    ):
        faults += [
            f"adapter.{field}: {pattern!r} matches no projection; known are {', '.join(BLOCKS)}, "
            f"{', '.join(MEGATRON_NAMES)}, {ALL_LINEAR} and patterns such as *.layers.0.*"
            for pattern in patterns
            if not any(_matches(name, pattern) for name in names)
        ]
    if not faults and not _selected(adapter, names):
        faults.append("adapter.exclude_modules: leaves nothing of target_modules; exclude less")
    return faults


def select_modules(adapter: AdapterConfig, num_layers: int) -> tuple[str, ...]:
    """Full names of the projections that `adapter` covers, in the model's order. Raises ConfigError for all faults."""
    faults = target_faults(adapter, num_layers)
    if faults:
        raise ConfigError("\n".join(faults))
    return tuple(_selected(adapter, _all_names(num_layers)))


def short_names(modules: Iterable[str]) -> list[str]:
    """The kinds of projection among `modules`, in a layer's order."""
    found = {module.rpartition(".")[2] for module in modules}
    return [name for name in BLOCKS if name in found]


def fused_layer(module: str) -> str:
    """Full name of the fused layer that a projection is in; its own name where it is alone."""
    block, _, name = module.rpartition(".")
    return f"{block}.{FUSED.get(name, name)}"


def _targets(adapter: AdapterConfig) -> tuple[str, ...]:
    return (ALL_LINEAR,) if adapter.target_modules == ALL_LINEAR else tuple(adapter.target_modules)


def _all_names(num_layers: int) -> list[str]:
    return [f"model.layers.{layer}.{block}.{name}" for layer in range(num_layers) for name, block in BLOCKS.items()]


def _selected(adapter: AdapterConfig, names: list[str]) -> list[str]:
    wanted, excluded = _targets(adapter), adapter.exclude_modules
    return [
        name
        for name in names
        if any(_matches(name, pattern) for pattern in wanted)
        and not any(_matches(name, pattern) for pattern in excluded)
    ]


def _matches(name: str, pattern: str) -> bool:
    short = name.rpartition(".")[2]
    if pattern in (ALL_LINEAR, short) or short in MEGATRON_NAMES.get(pattern, ()):
        return True
    # Patterns and full names; PEFT writes them without `model.` too.
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"model.{pattern}")
