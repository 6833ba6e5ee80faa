"""Which models we compute as transformers does. Free of torch: a run's check refuses what trainer and engine would."""

from collections.abc import Mapping
from typing import Any

from lora_rl.trainer.topology import SPLIT_BY_EXPERT_PARALLEL

SPARSE = "Qwen3MoeForCausalLM"

FAMILIES = {
    "Qwen3ForCausalLM": "Qwen3",
    SPARSE: "Qwen3-MoE",
    "Qwen2ForCausalLM": "Qwen2 and Qwen2.5",
    "LlamaForCausalLM": "Llama and SmolLM2",
}
"""Architectures whose outputs are tested against transformers."""

LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The only values that Megatron's llama3 rope scaling has."""

LEFT_OUT = ("attention_bias", "mlp_bias", "use_sliding_window")
"""Parts that Megatron has no place for: it would leave them out in silence."""


def model_faults(model_config: Mapping[str, Any]) -> list[str]:
    """What a model's config.json, or transformers' reading of it, has that we do not, as `name value, rule; mend`."""
    architecture = (model_config.get("architectures") or ["none"])[0]
    if architecture not in FAMILIES:
        supported = ", ".join(f"{name} ({text})" for name, text in FAMILIES.items())
        return [f"architecture {architecture} is not supported; use one of {supported}"]
    activation = model_config.get("hidden_act", "silu")
    return [
        *_rope_faults(model_config.get("rope_parameters") or model_config.get("rope_scaling") or {}),
        *([f"hidden_act {activation} is not supported; use a model with silu"] if activation != "silu" else []),
        *(
            f"{name} is not supported for {FAMILIES[architecture]}; use a model without it"
            for name in LEFT_OUT
            if model_config.get(name)
        ),
        *(_expert_faults(model_config) if architecture == SPARSE else []),
    ]


def length_faults(max_model_len: int, model_config: Mapping[str, Any]) -> list[str]:
    """Whether an engine of `max_model_len` would go beyond the model's positions, as `field: value, rule; mend`.

    Those that a llama3 rope adds are among them.
    """
    longest = model_config.get("max_position_embeddings")
    if longest is None or max_model_len <= longest:
        return []
    return [f"engine.max_model_len: {max_model_len} exceeds max_position_embeddings {longest} of the model; lower it"]


def _rope_faults(rope: Mapping[str, Any]) -> list[str]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        return [f"rope_type {kind} is not supported; use a model with default or llama3"]
    return [
        f"rope {name} {rope.get(name)} is not supported; Megatron has {value}"
        for name, value in LLAMA3_ROPE.items()
        if kind == "llama3" and rope.get(name) != value
    ]


def _expert_faults(model_config: Mapping[str, Any]) -> list[str]:
    faults = []
    dense, every = model_config.get("mlp_only_layers"), model_config.get("decoder_sparse_step", 1)
    if dense or every != 1:
        faults.append(
            f"mlp_only_layers {dense} and decoder_sparse_step {every} make some layers dense, which is not supported; "
            "use a model whose every layer has experts"
        )
    taken = model_config.get("num_experts_per_tok", 8)
    experts = next((model_config[name] for name in SPLIT_BY_EXPERT_PARALLEL if model_config.get(name)), 128)
    if not 2 <= taken <= experts:
        faults.append(
            f"num_experts_per_tok {taken} is not within 2 and num_experts {experts}, which is not supported; use a "
            "model whose rows take several experts"
        )
    return faults
