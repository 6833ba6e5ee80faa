import pytest

from lora_rl.config import AdapterConfig, check_config
from lora_rl.errors import ConfigError
from lora_rl.trainer.init_adapter import resolve_init, resolve_run
from tests.builders import make_peft_directory


@pytest.fixture
def init(tmp_path) -> str:
    """A PEFT directory of rank 3, alpha 7 and rsLoRA on q_proj and down_proj of two layers."""
    return str(make_peft_directory(tmp_path / "adapter", r=3, lora_alpha=7, use_rslora=True))


def _run(**sections):
    values = {"iterations": 1, "model": {"name": "m"}, "data": {"type": "file", "uri": "x.jsonl"}}
    return check_config(values | sections)


def test_what_the_config_does_not_give_is_the_adapter_s(init):
    adapter = resolve_init(AdapterConfig(init=init, dropout=0.1))
    assert (adapter.rank, adapter.alpha, adapter.rslora) == (3, 7.0, True)
    assert adapter.target_modules == ("q_proj", "down_proj")
    assert adapter.dropout == 0.1
    assert adapter.left_to_init == frozenset()


def test_what_the_config_gives_may_be_the_same_in_other_words(init):
    adapter = AdapterConfig(
        init=init, rank=3, target_modules=("linear_qkv", "linear_fc2"), exclude_modules=("*.?_proj",)
    )
    with pytest.raises(ConfigError):
        resolve_init(adapter)
    adapter = AdapterConfig(
        init=init, rank=3, target_modules=("linear_qkv", "linear_fc2"), exclude_modules=("k_proj", "v_proj")
    )
    assert resolve_init(adapter).target_modules == adapter.target_modules


def test_a_resolved_adapter_resolves_to_itself(init):
    once = resolve_init(AdapterConfig(init=init))
    again = resolve_init(AdapterConfig.model_validate(once.model_dump(mode="json")))
    assert again.model_dump(mode="json") == once.model_dump(mode="json")


def test_without_init_defaults_stand():
    assert resolve_init(AdapterConfig()) == AdapterConfig()


def test_each_field_that_differs_is_named_with_both_values_and_the_mend(init):
    adapter = AdapterConfig(init=init, rank=4, alpha=8, rslora=False, target_modules=("q_proj", "k_proj"))
    with pytest.raises(ConfigError) as caught:
        resolve_init(adapter)
    lines = str(caught.value).splitlines()
    assert lines[:3] == [
        f"adapter.rank: 4, but 3 in adapter.init {init}; leave it out or give 3",
        f"adapter.alpha: 8.0, but 7.0 in adapter.init {init}; leave it out or give 7.0",
        f"adapter.rslora: False, but True in adapter.init {init}; leave it out or give True",
    ]
    assert lines[3].startswith("adapter.target_modules: ['q_proj', 'k_proj'] covers model.layers.0.self_attn.k_proj (2")
    assert lines[4].startswith(
        "adapter.target_modules: ['q_proj', 'k_proj'] leaves out model.layers.0.mlp.down_proj (2"
    )
    assert all("leave it out" in line for line in lines)


def test_excluding_what_the_adapter_holds_is_refused(init):
    with pytest.raises(ConfigError, match=r"adapter.exclude_modules: \['q_proj'\] leaves out .*, which it holds"):
        resolve_init(AdapterConfig(init=init, exclude_modules=("q_proj",)))


def test_a_run_is_recorded_with_the_adapter_s_numbers(init):
    resolved = resolve_run(_run(adapter={"init": init}))
    explicit = {"rank": 3, "alpha": 7, "rslora": True, "target_modules": ["q_proj", "down_proj"]}
    assert resolved.sha256 == _run(adapter={"init": init} | explicit).sha256


def test_the_limit_of_ranks_counts_for_the_adapter_s_rank_not_for_the_default(init):
    assert resolve_run(_run(adapter={"init": init}, trainer={"max_rank": 8})).adapter.rank == 3
    with pytest.raises(ConfigError, match=r"adapter.rank: 3 exceeds trainer.max_rank 2"):
        resolve_run(_run(adapter={"init": init}, trainer={"max_rank": 2}))


def test_an_adapter_that_is_not_there_is_a_fault_of_the_config(tmp_path):
    with pytest.raises(ConfigError, match=r"adapter.init: .*cannot be read"):
        resolve_run(_run(adapter={"init": str(tmp_path / "none")}))
