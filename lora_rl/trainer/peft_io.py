"""PEFT directories, out and in: `adapter_model.safetensors` and `adapter_config.json`, as PEFT and vLLM load them.

Tensors are `base_model.model.<projection>.lora_{A,B}.weight`, float32. Nothing is unpickled: `.bin` files are refused.
"""

import json
from collections.abc import Mapping
from typing import Any

import fsspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError, DataError
from lora_rl.store.canonical import canonical_json
from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.state_io import check_shapes
from lora_rl.trainer.targets import fused_layer, short_names

PREFIX = "base_model.model."
WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"

PLAIN = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "layers_pattern": ([], None),
    "megatron_config": (None,),
    "lora_bias": (False, None),
}
"""Fields of PEFT's config whose other values mean more than A and B, and the values that we can take."""


def export_peft(
    lora: Lora, adapter: AdapterConfig, weights: Mapping[str, Tensor], *, num_layers: int, base_model_name: str
) -> tuple[bytes, bytes]:
    """Bytes of a PEFT directory's weights and config, from whole tensors. Raises DataError for an empty adapter."""
    if not weights:
        raise DataError(f"adapter {adapter.name}: has no weights to export; let target_modules cover a projection")
    # Each projection gets its own copy of a shared A: safetensors refuses two names for the same memory.
    tensors = {
        f"{PREFIX}{module}.lora_{letter}.weight": weights[name].to(torch.float32, copy=True).contiguous()
        for module in lora.modules
        for letter, name in (("A", lora.name_of_a(module)), ("B", lora.name_of_b(module)))
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model_name,
        "r": lora.rank,
        "lora_alpha": _plain_number(adapter.alpha),
        "use_rslora": adapter.rslora,
        "lora_dropout": adapter.dropout,
        "target_modules": _target_modules(lora, num_layers),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return safetensors.torch.save(tensors, metadata={"format": "pt"}), canonical_json(config)


def import_peft(
    uri: str, lora: Lora, adapter: AdapterConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Whole float32 weights by name, from a PEFT directory or URI; `shapes` are those of `lora` on this base.

    Raises DataError for files that are missing, damaged or not finite, ConfigError where they hold another adapter
    than the config describes.
    """
    root = uri.rstrip("/")
    config = _read_config(f"{root}/{CONFIG_FILE}")
    try:
        found = safetensors.torch.load(_read(f"{root}/{WEIGHTS_FILE}"))
    except SafetensorError as error:
        raise DataError(f"{root}/{WEIGHTS_FILE}: not a whole safetensors file ({error}); copy it again") from error
    if not found:
        raise DataError(f"{root}/{WEIGHTS_FILE}: holds no tensors; export the adapter again")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in found.items()}
    _refuse_mismatch(root, config, tensors, lora, adapter)
    if lora.shared_a:
        tensors = _with_shared_a(root, tensors, lora)
    check_shapes(tensors, shapes, f"{root}/{WEIGHTS_FILE}")
    return {name: tensors[name].to(torch.float32) for name in shapes}


def _with_shared_a(root: str, tensors: Mapping[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """One A under the name of each fused layer, from those of its projections. Raises ConfigError where they differ."""
    shared: dict[str, Tensor] = {}
    faults = []
    for module in lora.modules:
        own, name = tensors[f"{module}.lora_A.weight"], lora.name_of_a(module)
        if not torch.equal(shared.setdefault(name, own), own):
            faults.append(f"{module}.lora_A.weight is not that of the other projections in {fused_layer(module)}")
        shared[lora.name_of_b(module)] = tensors[lora.name_of_b(module)]
    if faults:
        raise ConfigError(
            f"adapter.init: {root}: {faults[0]} ({len(faults)} such), but adapter.type lora has one A for them; "
            "set adapter.type to canonical_lora"
        )
    return shared


def _refuse_mismatch(
    root: str, config: dict[str, Any], tensors: Mapping[str, Tensor], lora: Lora, adapter: AdapterConfig
) -> None:
    faults = [
        f"{field} {config[field]!r} is not supported; merge or retrain without it"
        for field, plain in PLAIN.items()
        if field in config and config[field] not in plain
    ]
    if config.get("peft_type") != "LORA":
        faults.append(f"peft_type {config.get('peft_type')!r} is not LORA; give a LoRA adapter")
    asked = {
        "r": ("rank", adapter.rank),
        "lora_alpha": ("alpha", adapter.alpha),
        "use_rslora": ("rslora", adapter.rslora),
    }
    faults += [
        f"{field} {config.get(field, False)!r} differs from adapter.{ours} {value!r}; set adapter.{ours} to it"
        for field, (ours, value) in asked.items()
        if config.get(field, False) != value
    ]
    asked_for = {f"{module}.lora_{letter}.weight" for module in lora.modules for letter in "AB"}
    missing, unknown = sorted(asked_for - tensors.keys()), sorted(tensors.keys() - asked_for)
    if missing:
        faults.append(
            f"lacks {missing[0]} and {len(missing) - 1} more that adapter.target_modules asks for; name fewer"
        )
    if unknown:
        faults.append(
            f"holds {unknown[0]} and {len(unknown) - 1} more that adapter.target_modules leaves out; name them too"
        )
    if faults:
        raise ConfigError("\n".join(f"adapter.init: {root}: {fault}" for fault in faults))


def _read_config(path: str) -> dict[str, Any]:
    try:
        config = json.loads(_read(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); copy it again") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: holds {type(config).__name__}, not an object; copy it again")
    return config


def _read(path: str) -> bytes:
    try:
        filesystem, _, (local,) = fsspec.get_fs_token_paths(path)
        return filesystem.cat_file(local)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error}); adapter.init must name a PEFT directory with {WEIGHTS_FILE}"
        ) from error


def _target_modules(lora: Lora, num_layers: int) -> list[str]:
    """Short names where each covered kind is covered in every layer, full names otherwise."""
    short = short_names(lora.modules)
    return short if len(lora.modules) == len(short) * num_layers else list(lora.modules)


def _plain_number(value: float) -> float | int:
    return int(value) if value == int(value) else value
