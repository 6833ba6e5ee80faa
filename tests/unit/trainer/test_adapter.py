from lora_rl.config import AdapterConfig
from lora_rl.trainer.adapter import lora_of

LAYER = "model.layers.0"


def test_each_projection_has_an_a_and_a_b_of_its_own():
    lora = lora_of(AdapterConfig(target_modules=("k_proj", "down_proj")), num_layers=1)
    assert lora.tensors == [
        f"{LAYER}.{module}.lora_{letter}.weight" for module in ("self_attn.k_proj", "mlp.down_proj") for letter in "AB"
    ]


def test_shared_a_is_one_for_the_covered_projections_of_a_fused_layer():
    lora = lora_of(AdapterConfig(type="lora"), num_layers=1)
    assert [name for name in lora.tensors if "lora_A" in name] == [
        f"{LAYER}.self_attn.linear_qkv.lora_A.weight",
        f"{LAYER}.self_attn.o_proj.lora_A.weight",
        f"{LAYER}.mlp.linear_fc1.lora_A.weight",
        f"{LAYER}.mlp.down_proj.lora_A.weight",
    ]
    assert [name for name in lora.tensors if "lora_B" in name] == [f"{m}.lora_B.weight" for m in lora.modules]
    assert len(set(lora.tensors)) == len(lora.tensors) == 4 + 7


def test_shared_a_is_named_after_the_fused_layer_though_one_projection_is_covered():
    lora = lora_of(AdapterConfig(type="lora", target_modules=("v_proj",)), num_layers=1)
    assert lora.tensors == [
        f"{LAYER}.self_attn.linear_qkv.lora_A.weight",
        f"{LAYER}.self_attn.v_proj.lora_B.weight",
    ]
