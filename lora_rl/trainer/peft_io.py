"""PEFT directories, out and in: `adapter_model.safetensors` and `adapter_config.json`, as PEFT and vLLM load them.

Tensors are `base_model.model.<projection>.lora_{A,B}.weight`, float32. Nothing is unpickled: `.bin` files are refused.
"""

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError, DataError
from lora_rl.store.canonical import canonical_json
from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.expert_names import stack, unstack
from lora_rl.trainer.init_adapter import differences_from
from lora_rl.trainer.peft_config import PREFIX, WEIGHTS_FILE, read_bytes, read_peft
from lora_rl.trainer.state_io import check_shapes
from lora_rl.trainer.targets import fused_layer, short_names
from lora_rl.trainer.tensor_bytes import encode_tensors
from lora_rl.trainer.transfer import on_host


def export_peft(
    lora: Lora, adapter: AdapterConfig, weights: Mapping[str, Tensor], *, num_layers: int, base_model_name: str
) -> tuple[bytes, bytes]:
    """Bytes of a PEFT directory's weights and config, from whole tensors. Raises DataError for an empty adapter."""
    tensors = {name: whole.float() for name, whole in on_host(peft_tensors(lora, adapter, weights)).items()}
    config = peft_config(lora, adapter, num_layers=num_layers, base_model_name=base_model_name)
    return encode_tensors(tensors, {"format": "pt"}), config


def peft_tensors(lora: Lora, adapter: AdapterConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors by PEFT's names; several may share memory. Raises DataError for an empty adapter."""
    if not weights:
        raise DataError(f"adapter {adapter.name}: has no weights to export; let target_modules cover a projection")
    return {
        f"{PREFIX}{single}": part
        for module in lora.modules
        for letter, name in (("A", lora.name_of_a(module)), ("B", lora.name_of_b(module)))
        for single, part in unstack(f"{module}.lora_{letter}.weight", weights[name]).items()
    }


def peft_config(lora: Lora, adapter: AdapterConfig, *, num_layers: int, base_model_name: str) -> bytes:
    """Bytes of adapter_config.json."""
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
    return canonical_json(config)


def import_peft(
    uri: str, lora: Lora, adapter: AdapterConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Whole float32 weights by name, from a PEFT directory or URI; `shapes` are those of `lora` on this base.

    Raises DataError for files that are missing, damaged or not finite, ConfigError where they hold another adapter
    than the config describes.
    """
    found = read_peft(uri)
    if faults := differences_from(found, adapter, lora.modules):
        raise ConfigError("\n".join(faults))
    path = f"{found.root}/{WEIGHTS_FILE}"
    try:
        named = safetensors.torch.load(read_bytes(path))
    except SafetensorError as error:
        raise DataError(f"adapter.init: {path}: not a whole safetensors file ({error}); copy it again") from error
    tensors = stack({name.removeprefix(PREFIX): tensor for name, tensor in named.items()}, f"adapter.init: {path}")
    if lora.shared_a:
        tensors = _with_shared_a(found.root, tensors, lora)
    check_shapes(tensors, shapes, f"adapter.init: {path}")
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


def _target_modules(lora: Lora, num_layers: int) -> list[str]:
    """Short names where each covered kind is covered in every layer, full names otherwise."""
    short = short_names(lora.modules)
    return short if len(lora.modules) == len(short) * num_layers else list(lora.modules)


def _plain_number(value: float) -> float | int:
    return int(value) if value == int(value) else value
