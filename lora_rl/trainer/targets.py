"""Which projections an adapter covers. Free of torch: the config check refuses a name before anything is allocated.

A projection is named `model.layers.<layer>.<block>.<name>`, as in Hugging Face; that of all experts of a layer
`model.layers.<layer>.mlp.experts.*.<name>`, with an asterisk. A pattern is such a name or Megatron's, or the end of one
from a dot on (`q_proj`, `self_attn.q_proj`); `*` stands for any characters.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from lora_rl.config import AdapterConfig

LAYERS = {
    "linear_qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "linear_proj": ("self_attn", ("o_proj",)),
    "linear_fc1": ("mlp", ("gate_proj", "up_proj")),
    "linear_fc2": ("mlp", ("down_proj",)),
}
"""Megatron's linear layers, and the Hugging Face block and projections that each holds, in a layer's order."""

BLOCKS = {projection: block for block, projections in LAYERS.values() for projection in projections}
"""Projections of a layer in their order, and the block each is in."""

MEGATRON_BLOCKS = {"self_attn": "self_attention", "mlp": "mlp", "mlp.experts.*": "mlp.experts"}
"""Megatron's names of the blocks."""

EXPERTS = "mlp.experts.*"
"""The block of a sparse layer that takes the place of `mlp`. Its experts are adapted together: PEFT keeps their weights
in one tensor, and vLLM loads all or none."""

EXPERT_NUMBER = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
"""In the name of one expert's projection."""

MEGATRON_NAMES = {name: projections for name, (_, projections) in LAYERS.items()} | {
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
}
"""Megatron's names (fused, and as in its canonical LoRA) and the projections each stands for."""

FUSED = {
    projection: name for name, (_, projections) in LAYERS.items() if len(projections) > 1 for projection in projections
}
"""Projections that Megatron computes together on one input, and the layer they are in."""

ALL_LINEAR = "all-linear"
SOME_LAYERS = 512
"""More layers than any model has: a pattern that matches none of these matches no model."""


def target_faults(adapter: AdapterConfig, num_layers: int | None = None, *, sparse: bool = False) -> list[str]:
    """Every rule on names of projections that `adapter` breaks, as `field: value, rule; mend`.

    Without `num_layers` a pattern may name any layer, and layers with experts too.
    """
    names = all_modules(num_layers, sparse=sparse)
    faults = [
        f"adapter.{field}: {pattern!r} matches no projection; known are {', '.join(BLOCKS)}, "
        f"{', '.join(MEGATRON_NAMES)}, {ALL_LINEAR} and patterns such as *.layers.0.* or *.mlp.experts.*"
        for field, patterns in (("target_modules", _targets(adapter)), ("exclude_modules", adapter.exclude_modules))
        for pattern in patterns
        if not any(matches(name, pattern) for name in names)
    ]
    if not _targets(adapter):
        faults.append(f"adapter.target_modules: is empty; name a projection, or {ALL_LINEAR}")
    elif not faults and not covered_modules(adapter, num_layers, sparse=sparse):
        faults.append("adapter.exclude_modules: leaves nothing of target_modules; exclude less")
    elif not faults and num_layers is not None:
        faults += _expert_faults(adapter, covered_modules(adapter, num_layers, sparse=sparse))
    return faults


def all_modules(num_layers: int | None = None, *, sparse: bool = False) -> list[str]:
    """Full name of every projection of a model, in its order; `sparse` says whether its layers have experts.

    Without `num_layers`, of more layers than any model has, with experts and without.
    """
    layers = range(SOME_LAYERS if num_layers is None else num_layers)
    names = []
    for layer in layers:
        for name, block in BLOCKS.items():
            if block != "mlp" or not sparse or num_layers is None:
                names.append(f"model.layers.{layer}.{block}.{name}")
            if block == "mlp" and (sparse or num_layers is None):
                names.append(f"model.layers.{layer}.{EXPERTS}.{name}")
    return names


def of_experts(name: str) -> bool:
    """Whether a projection, or a tensor of one, is that of a layer's experts."""
    return f".{EXPERTS}." in name


def stacked_name(name: str) -> str:
    """The name of all experts, from that of one or of its tensor in Hugging Face; any other name as it is."""
    return EXPERT_NUMBER.sub("*", name)


def covered_modules(adapter: AdapterConfig, num_layers: int | None = None, *, sparse: bool = False) -> tuple[str, ...]:
    """Those of `all_modules` that `adapter` covers; whether its names are known is for `target_faults` to say."""
    wanted, excluded = _targets(adapter), adapter.exclude_modules
    return tuple(
        name
        for name in all_modules(num_layers, sparse=sparse)
        if any(matches(name, pattern) for pattern in wanted) and not any(matches(name, pattern) for pattern in excluded)
    )


def matches(module: str, pattern: str, ends: tuple[str, ...] = ("",)) -> bool:
    """Whether `pattern` names the projection, or one of its names with one of `ends`."""
    if pattern == ALL_LINEAR:
        return True
    return any(fnmatchcase(f".{name}{end}", f"*.{pattern}") for name in _names(module) for end in ends)


def short_names(modules: Iterable[str]) -> list[str]:
    """The kinds of projection among `modules`, in a layer's order."""
    found = {module.rpartition(".")[2] for module in modules}
    return [name for name in BLOCKS if name in found]


def fused_layer(module: str) -> str:
    """Full name of the fused layer that a projection is in; its own name where it is alone."""
    block, _, name = module.rpartition(".")
    return f"{block}.{FUSED.get(name, name)}"


def _expert_faults(adapter: AdapterConfig, modules: Iterable[str]) -> list[str]:
    """What is wrong with the covered projections of experts."""
    covered: dict[str, list[str]] = {}
    for block, _, name in (module.rpartition(".") for module in modules if of_experts(module)):
        covered.setdefault(block, []).append(name)
    asked = [name for name, block in BLOCKS.items() if block == "mlp"]
    faults = [
        f"adapter.target_modules: covers {', '.join(names)} of {block}, but PEFT and vLLM adapt "
        f"{', '.join(asked)} of experts together; name all of them, or exclude *.{EXPERTS}"
        for block, names in covered.items()
        if names != asked
    ]
    if covered and adapter.rslora:
        faults.append(
            "adapter.rslora: PEFT scales gate_proj and up_proj of experts wrongly under it; set it to false and "
            f"adapter.alpha to {adapter.scaling * adapter.rank:g}, which is the same update"
        )
    if covered and adapter.dropout:
        faults.append(
            f"adapter.dropout: {adapter.dropout:g} is not supported on experts, PEFT has none there; "
            f"set it to 0, or exclude *.{EXPERTS}"
        )
    return faults


def _targets(adapter: AdapterConfig) -> tuple[str, ...]:
    return (ALL_LINEAR,) if adapter.target_modules == ALL_LINEAR else tuple(adapter.target_modules)


def _names(module: str) -> list[str]:
    """The projection's name in Hugging Face and those in Megatron."""
    path, _, short = module.rpartition(".")
    _, _, layer, block = path.split(".", 3)
    megatron = f"decoder.layers.{layer}.{MEGATRON_BLOCKS[block]}"
    return [module] + [f"{megatron}.{name}" for name, parts in MEGATRON_NAMES.items() if short in parts]
