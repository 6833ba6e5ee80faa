import pytest

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError
from lora_rl.trainer.adapter import adapter_faults, frozen_tensors, lora_of

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


def _trained(*only_train: str, **fields) -> list[str]:
    adapter = AdapterConfig(only_train=only_train, **fields)
    lora = lora_of(adapter, num_layers=2)
    frozen = frozen_tensors(adapter, lora)
    return [name.removeprefix("model.layers.").removesuffix(".weight") for name in lora.tensors if name not in frozen]


def test_nothing_is_frozen_by_default():
    adapter = AdapterConfig()
    assert frozen_tensors(adapter, lora_of(adapter, num_layers=2)) == frozenset()


@pytest.mark.parametrize(
    ("pattern", "trained"),
    [
        ("o_proj", [f"{layer}.self_attn.o_proj.lora_{letter}" for layer in (0, 1) for letter in "AB"]),
        ("*.layers.1.*.down_proj", ["1.mlp.down_proj.lora_A", "1.mlp.down_proj.lora_B"]),
        ("model.layers.0.mlp.up_proj.lora_B.weight", ["0.mlp.up_proj.lora_B"]),
        ("*.layers.0.*.linear_fc1.lora_B", ["0.mlp.gate_proj.lora_B", "0.mlp.up_proj.lora_B"]),
    ],
)
def test_only_train_names_projections_and_tensors(pattern, trained):
    assert _trained(pattern) == trained


def test_only_train_takes_one_letter_of_all_projections():
    assert len(_trained("lora_B")) == 14
    assert all(name.endswith("lora_B") for name in _trained("lora_B"))
    assert len(_trained("all-linear")) == 28


def test_a_shared_a_is_trained_with_any_of_its_projections():
    assert _trained("*.layers.0.*.v_proj", type="lora") == [
        "0.self_attn.linear_qkv.lora_A",
        "0.self_attn.v_proj.lora_B",
    ]


def test_only_train_that_matches_nothing_covered_is_refused():
    adapter = AdapterConfig(target_modules=("q_proj",), only_train=("k_proj", "q_proj", "lora_C"))
    faults = adapter_faults(adapter)
    assert [fault.split("'")[1] for fault in faults] == ["k_proj", "lora_C"]
    with pytest.raises(ConfigError, match=r"adapter.only_train: 'k_proj' matches nothing that the adapter covers"):
        lora_of(adapter, num_layers=2)


def test_an_empty_only_train_is_refused():
    assert "give null for all" in adapter_faults(AdapterConfig(only_train=()))[0]


def test_faults_of_targets_and_of_only_train_are_named_at_once():
    adapter = AdapterConfig(target_modules=("q_prj",), only_train=("q_proj", "up_prj"))
    assert [fault.split(":")[0] for fault in adapter_faults(adapter)] == [
        "adapter.target_modules",
        "adapter.only_train",
    ]
