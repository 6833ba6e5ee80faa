import subprocess
import sys

import pytest

from lora_rl.config import AdapterConfig
from lora_rl.trainer.targets import BLOCKS, MEGATRON_NAMES, covered_modules, fused_layer, short_names, target_faults


def _selected(target_modules, exclude_modules=(), num_layers=2) -> list[str]:
    adapter = AdapterConfig(target_modules=target_modules, exclude_modules=exclude_modules)
    return [name.removeprefix("model.layers.") for name in covered_modules(adapter, num_layers)]


def test_all_linear_covers_the_seven_projections_of_each_layer_in_order():
    names = _selected("all-linear")
    assert names == [f"{layer}.{block}.{name}" for layer in (0, 1) for name, block in BLOCKS.items()]


def test_hugging_face_and_megatron_names_select_the_same():
    assert _selected(("linear_qkv", "linear_fc2")) == _selected(("q_proj", "k_proj", "v_proj", "down_proj"))


def test_each_megatron_name_is_known():
    assert target_faults(AdapterConfig(target_modules=tuple(MEGATRON_NAMES))) == []


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("*.layers.1.mlp.*", ["1.mlp.gate_proj", "1.mlp.up_proj", "1.mlp.down_proj"]),
        ("*.layers.*.self_attn.q_proj", ["0.self_attn.q_proj", "1.self_attn.q_proj"]),
        ("self_attn.o_proj", ["0.self_attn.o_proj", "1.self_attn.o_proj"]),
        ("model.layers.0.self_attn.q_proj", ["0.self_attn.q_proj"]),
        ("layers.0.self_attn.q_proj", ["0.self_attn.q_proj"]),
        ("decoder.layers.1.mlp.linear_fc1", ["1.mlp.gate_proj", "1.mlp.up_proj"]),
        ("*.layers.0.*.linear_q*", ["0.self_attn.q_proj", "0.self_attn.k_proj", "0.self_attn.v_proj"]),
    ],
)
def test_full_names_ends_of_names_and_wildcards_select(pattern, selected):
    assert _selected((pattern,)) == selected


def test_a_name_is_whole_between_dots():
    assert len(target_faults(AdapterConfig(target_modules=("roj", "proj", "attn.q_proj", "0.self_attn")))) == 4


def test_excluded_modules_are_left_out():
    assert _selected(("linear_fc1",), ("gate_proj", "*.layers.1.*")) == ["0.mlp.up_proj"]


@pytest.mark.parametrize("field", ["target_modules", "exclude_modules"])
def test_an_unknown_name_is_refused_with_the_known_ones(field):
    (fault,) = target_faults(AdapterConfig(**{field: ("q_porj",)}))
    assert fault.startswith(f"adapter.{field}: 'q_porj'")
    assert "q_proj" in fault
    assert "linear_qkv" in fault


def test_a_pattern_for_a_layer_that_the_model_lacks_is_refused_once_the_model_is_known():
    adapter = AdapterConfig(target_modules=("*.layers.7.*",))
    assert target_faults(adapter) == []
    assert "layers.7" in target_faults(adapter, num_layers=2)[0]


def test_excluding_everything_is_refused():
    assert "leaves nothing" in target_faults(AdapterConfig(exclude_modules=("*",)))[0]


def test_naming_nothing_is_refused():
    assert "adapter.target_modules: is empty" in target_faults(AdapterConfig(target_modules=()))[0]


def test_every_fault_is_named_at_once():
    faults = target_faults(AdapterConfig(target_modules=("q_prj", "k_proj", "*.lm_head"), exclude_modules=("moon",)))
    assert [fault.split("'")[1] for fault in faults] == ["q_prj", "*.lm_head", "moon"]


def test_projections_that_megatron_fuses_are_in_one_layer():
    layers = {name: fused_layer(f"model.layers.3.{block}.{name}") for name, block in BLOCKS.items()}
    assert layers["q_proj"] == layers["k_proj"] == layers["v_proj"] == "model.layers.3.self_attn.linear_qkv"
    assert layers["gate_proj"] == layers["up_proj"] == "model.layers.3.mlp.linear_fc1"
    assert layers["o_proj"] == "model.layers.3.self_attn.o_proj"
    assert layers["down_proj"] == "model.layers.3.mlp.down_proj"


def test_short_names_come_in_the_order_of_a_layer():
    assert short_names(["model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"]) == ["q_proj", "down_proj"]


def test_names_are_checked_without_torch():
    code = "import sys, lora_rl.trainer.targets, lora_rl.trainer.adapter; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _selected_sparse(*target_modules: str) -> list[str]:
    adapter = AdapterConfig(target_modules=target_modules or "all-linear")
    return [name.removeprefix("model.layers.") for name in covered_modules(adapter, 1, sparse=True)]


EXPERTS = [f"0.mlp.experts.*.{name}" for name in ("gate_proj", "up_proj", "down_proj")]


@pytest.mark.parametrize(
    "targets",
    [
        ("*.mlp.experts.*",),
        ("gate_proj", "up_proj", "down_proj"),
        ("mlp.experts.*.gate_proj", "*.mlp.experts.*.up_proj", "*.down_proj"),
        ("linear_fc1", "linear_fc2"),
        ("decoder.layers.0.mlp.experts.linear_fc1", "mlp.experts.linear_fc2"),
    ],
)
def test_experts_of_a_layer_are_selected_together_by_wildcard_and_by_name(targets):
    assert _selected_sparse(*targets) == EXPERTS
    assert target_faults(AdapterConfig(target_modules=targets)) == []
    assert target_faults(AdapterConfig(target_modules=targets), 1, sparse=True) == []


def test_all_linear_covers_attention_and_experts_and_no_router():
    attention = [f"0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    assert _selected_sparse() == attention + EXPERTS
    assert _selected_sparse("self_attn.*") == attention


def test_experts_of_a_model_without_any_are_refused():
    (fault,) = target_faults(AdapterConfig(target_modules=("*.mlp.experts.*",)), 2)
    assert fault.startswith("adapter.target_modules: '*.mlp.experts.*' matches no projection")
