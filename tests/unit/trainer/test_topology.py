import pytest

from lora_rl.config import EngineConfig, TrainerConfig
from lora_rl.trainer.topology import engine_faults, topology_faults

DENSE = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512}


def _faults(model_config: dict[str, int], **layout: int) -> list[str]:
    return topology_faults(TrainerConfig(**layout), DENSE | model_config)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_experts_that_the_copies_cannot_share_equally_are_refused(name):
    (fault,) = _faults({name: 8}, expert_parallel=3)
    assert fault == f"trainer.expert_parallel: 3 does not divide {name} 8; use 1 or 2"
    assert _faults({name: 8}, expert_parallel=4) == []


def test_experts_to_share_where_there_are_none_are_refused():
    (fault,) = _faults({}, expert_parallel=2)
    assert fault.startswith("trainer.expert_parallel: 2 shares the experts of a layer, but model.name has none; use 1")


def test_an_expert_that_tensor_parallelism_does_not_divide_is_refused():
    (fault,) = _faults({"num_experts": 8, "moe_intermediate_size": 33}, tensor_parallel=2)
    assert fault == "trainer.tensor_parallel: 2 does not divide moe_intermediate_size 33; use 1"


@pytest.mark.parametrize(
    ("sizes", "shares", "faults"),
    [
        ({}, 2, []),
        ({}, 4, []),  # two key heads, each on two of four processes
        ({"num_key_value_heads": 4}, 3, ["num_attention_heads 4", "num_key_value_heads 4", "intermediate_size 128"]),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, ["num_attention_heads 9", "num_key_value_heads 3"]),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, 4, ["num_key_value_heads 3"]),
        ({"moe_intermediate_size": 33}, 2, ["moe_intermediate_size 33"]),
        ({"vocab_size": 511}, 2, []),  # vLLM pads words
    ],
)
def test_an_engine_that_cannot_share_a_model_is_refused(sizes, shares, faults):
    found = engine_faults(EngineConfig(tensor_parallel=shares), DENSE | sizes)
    assert [fault.partition(";")[0] for fault in found] == [
        f"engine.tensor_parallel: {shares} does not divide {name}" for name in faults
    ]


def test_only_what_an_engine_can_do_is_proposed():
    sizes = {"num_attention_heads": 12, "intermediate_size": 96, "num_key_value_heads": 2}
    faults = engine_faults(EngineConfig(tensor_parallel=8), DENSE | sizes)
    assert faults == ["engine.tensor_parallel: 8 does not divide num_attention_heads 12; use 1 or 2 or 4 or 6"]
