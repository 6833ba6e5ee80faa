"""What a PEFT directory says of itself. Free of torch: of its tensors only the header is read.

Which projections it covers follows from the names of its tensors; `target_modules` in its config may be a regular
expression or name modules that the base lacks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec

from lora_rl.errors import ConfigError, DataError
from lora_rl.trainer.targets import ALL_LINEAR, BLOCKS, all_modules, of_experts, short_names, stacked_name

PREFIX = "base_model.model."
WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"

MEANS_MORE = (
    "bias",
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "megatron_config",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "lora_ga_config",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "kasa_config",
)
"""Fields of PEFT's config that, unless off, mean more than one A and B of one rank and scaling for each projection."""

OFF = (None, False, "none", [], {})

READ_THE_RESIDUAL_STREAM = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
"""Projections whose A is as wide as the model."""

PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is."""

MAX_HEADER = 100_000_000
"""Bytes of a safetensors header: the format's own limit."""


@dataclass(frozen=True, kw_only=True)
class PeftAdapter:
    """A plain LoRA adapter, apart from its numbers."""

    root: str
    rank: int
    alpha: float
    rslora: bool
    modules: tuple[str, ...]
    """Full names of its projections, in the model's order."""
    target_modules: tuple[str, ...]
    """Short names where its config means every layer of the base, else `modules`."""
    width: int | None
    """Of its model's residual stream; null where none of its projections reads that."""

    @property
    def sparse(self) -> bool:
        """Whether it adapts experts."""
        return any(map(of_experts, self.modules))

    @property
    def num_layers(self) -> int:
        """Layers up to the last that it covers."""
        return max(_layer(module) for module in self.modules) + 1


def read_peft(uri: str) -> PeftAdapter:
    """The adapter in a PEFT directory or URI. Raises DataError for files that are missing or damaged.

    Raises ConfigError for all that is there beyond plain LoRA, by name.
    """
    root = uri.rstrip("/")
    config, shapes = _read_config(f"{root}/{CONFIG_FILE}"), _tensor_shapes(f"{root}/{WEIGHTS_FILE}")
    names = shapes.keys()
    modules = tuple(module for module in all_modules() if names & _both(module))
    faults = [
        *_unsupported(config),
        *(f"lacks tensor {name}; export the adapter again" for module in modules for name in _both(module) - names),
    ]
    if unknown := sorted(names - {name for module in modules for name in _both(module)}):
        faults.append(
            f"holds tensor {unknown[0]} ({len(unknown)} such), no A or B of {', '.join(BLOCKS)}; retrain without it"
        )
    if faults:
        raise ConfigError("\n".join(f"adapter.init: {root}: {fault}" for fault in faults))
    return PeftAdapter(
        root=root,
        rank=config.get("r", 8),
        alpha=float(config.get("lora_alpha", 8)),
        rslora=bool(config.get("use_rslora")),
        modules=modules,
        target_modules=_target_modules(config.get("target_modules"), modules),
        width=_width(shapes),
    )


def read_bytes(path: str, start: int | None = None, end: int | None = None) -> bytes:
    """The file at a path or URI, or a part of it."""
    try:
        filesystem, _, (local,) = fsspec.get_fs_token_paths(path)
        return filesystem.cat_file(local, start=start, end=end)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"adapter.init: {path}: cannot be read ({error}); give a PEFT directory with {WEIGHTS_FILE}"
        ) from error


def _read_config(path: str) -> dict[str, Any]:
    data = read_bytes(path)
    try:
        config = json.loads(data)
    except ValueError as error:
        raise DataError(f"adapter.init: {path}: not JSON ({error}); copy it again") from error
    if not isinstance(config, dict):
        raise DataError(f"adapter.init: {path}: holds {type(config).__name__}, not an object; copy it again")
    return config


def _tensor_shapes(path: str) -> dict[str, list[int]]:
    """Shapes of the tensors in a safetensors file, without PEFT's prefix, from its header: 8 bytes of length, JSON.

    All experts of a layer count as one, of the shape of any.
    """
    length = int.from_bytes(read_bytes(path, 0, 8), "little")
    data = read_bytes(path, 8, 8 + min(length, MAX_HEADER))
    try:
        header = json.loads(data)
        header.pop("__metadata__", None)
        shapes = {stacked_name(name.removeprefix(PREFIX)): entry["shape"] for name, entry in header.items()}
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(f"adapter.init: {path}: not a whole safetensors file ({error}); copy it again") from error
    if not shapes:
        raise DataError(f"adapter.init: {path}: holds no tensors; export the adapter again")
    return shapes


def _width(shapes: Mapping[str, list[int]]) -> int | None:
    for name, shape in shapes.items():
        module, _, tensor = name.partition(".lora_")
        if tensor == "A.weight" and module.rpartition(".")[2] in READ_THE_RESIDUAL_STREAM:
            return shape[-1] if shape else None
    return None


def _unsupported(config: dict[str, Any]) -> list[str]:
    faults = [
        f"{field} {config[field]!r} is not supported; merge or retrain without it"
        for field in MEANS_MORE
        if config.get(field) not in OFF
    ]
    if config.get("peft_type") != "LORA":
        faults.append(f"peft_type {config.get('peft_type')!r} is not LORA; give a LoRA adapter")
    if (start := config.get("init_lora_weights")) not in PLAIN_STARTS:
        faults.append(f"init_lora_weights {start!r} changes the base, which is not supported; convert it to plain LoRA")
    faults += [
        f"{field} {config[field]!r} is not a positive number; export the adapter again"
        for field, kind in (("r", int), ("lora_alpha", (int, float)))
        if field in config and not (isinstance(config[field], kind) and config[field] > 0)
    ]
    return faults


def _target_modules(asked: Any, modules: tuple[str, ...]) -> tuple[str, ...]:
    kinds = short_names(modules)
    listed = list(BLOCKS) if asked == ALL_LINEAR else asked if isinstance(asked, list) else []
    num_layers = len({_layer(module) for module in modules})
    sparse = any(map(of_experts, modules))
    everywhere = modules == tuple(m for m in all_modules(num_layers, sparse=sparse) if m.rpartition(".")[2] in kinds)
    return tuple(kinds) if everywhere and {*kinds} <= {*listed} else modules


def _both(module: str) -> set[str]:
    return {f"{module}.lora_{letter}.weight" for letter in "AB"}


def _layer(module: str) -> int:
    return int(module.split(".")[2])
