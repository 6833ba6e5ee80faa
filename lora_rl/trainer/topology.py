"""Which layouts of processes fit a model. Free of torch: a run's check refuses what the trainer would."""

from collections.abc import Mapping
from math import gcd
from typing import Any

from lora_rl.config import EngineConfig, TrainerConfig

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

SPLIT_BY_TENSOR_PARALLEL = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "vocab_size",
)
SPLIT_BY_ENGINE = ("num_attention_heads", "intermediate_size", "moe_intermediate_size")
SPLIT_BY_PIPELINE = ("num_hidden_layers",)
SPLIT_BY_EXPERT_PARALLEL = ("num_experts", "num_local_experts")
"""Sizes in a Hugging Face config that every process takes an equal share of."""


def has_experts(model_config: Mapping[str, Any]) -> bool:
    """Whether a model's config.json is of one with experts."""
    return any(model_config.get(name) for name in SPLIT_BY_EXPERT_PARALLEL)


def topology_faults(trainer: TrainerConfig, model_config: Mapping[str, Any]) -> list[str]:
    """Every size in a model's config.json that the layout does not divide, as `field: value, rule; mend`."""
    return [
        *_not_divided("trainer.tensor_parallel", trainer.tensor_parallel, SPLIT_BY_TENSOR_PARALLEL, model_config),
        *_not_divided("trainer.pipeline_parallel", trainer.pipeline_parallel, SPLIT_BY_PIPELINE, model_config),
        *_not_divided("trainer.expert_parallel", trainer.expert_parallel, SPLIT_BY_EXPERT_PARALLEL, model_config),
        *_no_experts(trainer, model_config),
    ]


def engine_faults(engine: EngineConfig, model_config: Mapping[str, Any]) -> list[str]:
    """The same of an engine. vLLM gives a key head to several processes where it has fewer heads than these."""
    shares, key_heads = engine.tensor_parallel, int(model_config.get("num_key_value_heads") or 1)
    shared = key_heads < shares and shares % key_heads == 0
    names = SPLIT_BY_ENGINE if shared else (*SPLIT_BY_ENGINE, "num_key_value_heads")
    return _not_divided("engine.tensor_parallel", shares, names, model_config)


def kv_cache_faults(engine: EngineConfig, model_config: Mapping[str, Any], *, dtype: str, gpus: bool) -> list[str]:
    """Whether an engine's KV cache is too small for one request of `max_model_len` tokens: vLLM does not start then."""
    field = "gpu_kv_cache_gib" if gpus else "kv_cache_gib"
    given = getattr(engine, field)
    needed = engine.max_model_len * _kv_bytes_of_token(engine, model_config, dtype) / GIB
    if given is None or given >= needed:
        return []
    return [
        f"engine.{field}: {given:g} is below the {needed:.2g} GiB of one request of engine.max_model_len "
        f"{engine.max_model_len} tokens; raise it or lower that"
    ]


def _kv_bytes_of_token(engine: EngineConfig, model_config: Mapping[str, Any], dtype: str) -> int:
    """In each process of the engine."""
    heads = int(model_config["num_attention_heads"])
    key_heads = int(model_config.get("num_key_value_heads") or heads)
    width = int(model_config.get("head_dim") or model_config["hidden_size"] // heads)
    here = -(-key_heads // engine.tensor_parallel)
    return 2 * int(model_config["num_hidden_layers"]) * here * width * BYTES[dtype]


def _no_experts(trainer: TrainerConfig, model_config: Mapping[str, Any]) -> list[str]:
    if trainer.expert_parallel == 1 or has_experts(model_config):
        return []
    return [
        f"trainer.expert_parallel: {trainer.expert_parallel} shares the experts of a layer, but model.name has none; "
        "use 1"
    ]


def _not_divided(field: str, shares: int, names: tuple[str, ...], model_config: Mapping[str, Any]) -> list[str]:
    sizes = {name: int(model_config[name]) for name in names if model_config.get(name)}
    common = gcd(*sizes.values())
    possible = [number for number in range(1, shares) if common % number == 0]
    return [
        f"{field}: {shares} does not divide {name} {size}; use {' or '.join(map(str, possible))}"
        for name, size in sizes.items()
        if size % shares
    ]
