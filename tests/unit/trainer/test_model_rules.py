"""What a model's config.json must say. tests/unit/trainer/test_model.py has the trainer refuse the same."""

from typing import Any

import pytest

from lora_rl.trainer.model_rules import FAMILIES, SPARSE, length_faults, model_faults

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(architecture: str = "LlamaForCausalLM", **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "hidden_act": "silu"} | fields


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("rope", [{}, {"rope_scaling": None}, {"rope_scaling": LLAMA3}, {"rope_parameters": LLAMA3}])
def test_each_family_passes_as_it_is_saved(architecture: str, rope: dict[str, Any]) -> None:
    assert model_faults(config(architecture, **rope)) == []


@pytest.mark.parametrize(
    ("model_config", "text"),
    [
        (config("Gemma3ForCausalLM"), "architecture Gemma3ForCausalLM is not supported; use one of Qwen3ForCausalLM"),
        ({}, "architecture none is not supported"),
        (config(hidden_act="gelu"), "hidden_act gelu is not supported; use a model with silu"),
        (config(rope_scaling={"type": "linear", "factor": 2.0}), "rope_type linear is not supported"),
        (config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_type yarn is not supported"),
        (config(rope_parameters=LLAMA3 | {"low_freq_factor": 2.0}), "rope low_freq_factor 2.0 is not supported"),
        (config(attention_bias=True), "attention_bias is not supported for Llama"),
        (config(mlp_bias=True), "mlp_bias is not supported for Llama"),
        (config("Qwen2ForCausalLM", use_sliding_window=True), "use_sliding_window is not supported for Qwen2"),
        (config(SPARSE, decoder_sparse_step=2), "decoder_sparse_step 2 make some layers dense"),
        (config(SPARSE, mlp_only_layers=[0]), r"mlp_only_layers [0] and"),
        (config(SPARSE, num_experts_per_tok=1), "num_experts_per_tok 1 is not within 2 and num_experts 128"),
        (config(SPARSE, num_local_experts=4, num_experts_per_tok=5), "5 is not within 2 and num_experts 4"),
        (config(SPARSE, num_experts=4, num_experts_per_tok=5), "5 is not within 2 and num_experts 4"),
    ],
)
def test_what_would_be_computed_differently_is_one_fault(model_config: dict[str, Any], text: str) -> None:
    (fault,) = model_faults(model_config)
    assert text in fault


def test_an_engine_cannot_go_beyond_the_positions_of_its_model() -> None:
    model_config = config(max_position_embeddings=2048)
    assert length_faults(2048, model_config) == length_faults(9999, config()) == []
    assert length_faults(2049, model_config) == [
        "engine.max_model_len: 2049 exceeds max_position_embeddings 2048 of the model; lower it"
    ]
