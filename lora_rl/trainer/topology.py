"""Which layouts of processes fit a model. Free of torch: a run's check refuses what the trainer would."""

from collections.abc import Mapping
from typing import Any

from lora_rl.config import EngineConfig, TrainerConfig

SPLIT_BY_TENSOR_PARALLEL = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "vocab_size",
)
COPIED_BY_ENGINE = ("num_key_value_heads",)
"""vLLM gives a key head to several processes where it has fewer heads than these."""
SPLIT_BY_ENGINE = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
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
    """The same of an engine."""
    return _not_divided(
        "engine.tensor_parallel", engine.tensor_parallel, SPLIT_BY_ENGINE, model_config, copied=COPIED_BY_ENGINE
    )


def _no_experts(trainer: TrainerConfig, model_config: Mapping[str, Any]) -> list[str]:
    if trainer.expert_parallel == 1 or has_experts(model_config):
        return []
    return [
        f"trainer.expert_parallel: {trainer.expert_parallel} shares the experts of a layer, but model.name has none; "
        "use 1"
    ]


def _not_divided(
    field: str, shares: int, names: tuple[str, ...], model_config: Mapping[str, Any], *, copied: tuple[str, ...] = ()
) -> list[str]:
    sizes = {name: int(model_config[name]) for name in names if model_config.get(name)}

    def too_odd(number: int) -> dict[str, int]:
        """Sizes that cannot be shared equally among so many."""
        return {
            name: size for name, size in sizes.items() if size % number and not (name in copied and number % size == 0)
        }

    possible = [number for number in range(1, shares) if not too_odd(number)]
    return [
        f"{field}: {shares} does not divide {name} {size}; use {' or '.join(map(str, possible))}"
        for name, size in too_odd(shares).items()
    ]
