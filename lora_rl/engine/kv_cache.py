"""How much KV cache a request takes. Free of vLLM: a run's check refuses what vLLM would."""

from collections.abc import Mapping
from typing import Any, Literal

from lora_rl.config import EngineConfig

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_cache_faults(
    engine: EngineConfig,
    field: Literal["kv_cache_gib", "gpu_kv_cache_gib"],
    model_config: Mapping[str, Any],
    *,
    dtype: str,
) -> list[str]:
    """Whether the cache that `field` gives holds no request of `max_model_len` tokens, as `field: value, rule; mend`.

    vLLM does not start then. `model_config` is the base's config.json.
    """
    given = engine.kv_cache_gib if field == "kv_cache_gib" else engine.gpu_kv_cache_gib
    needed = engine.max_model_len * _bytes_of_token(engine, model_config, dtype) / GIB
    if given is None or given >= needed:
        return []
    return [
        f"engine.{field}: {given:g} is below the {needed:.2g} GiB of one request of engine.max_model_len "
        f"{engine.max_model_len} tokens; raise it or lower that"
    ]


def _bytes_of_token(engine: EngineConfig, model_config: Mapping[str, Any], dtype: str) -> int:
    """Keys and values of one token in each process of the engine."""
    heads = int(model_config["num_attention_heads"])
    key_heads = int(model_config.get("num_key_value_heads") or heads)
    width = int(model_config.get("head_dim") or model_config["hidden_size"] // heads)
    here = -(-key_heads // engine.tensor_parallel)
    return 2 * int(model_config["num_hidden_layers"]) * here * width * BYTES[dtype]
