import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from lora_rl.config import check_config
from lora_rl.errors import ConfigError
from lora_rl.models.tiny import make_tiny_qwen3, make_tiny_qwen3_moe
from lora_rl.preflight import GIB, RUNTIME_GIB, check_run
from tests.builders import make_peft_directory


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of it, whatever else runs on the machine."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 64 * GIB}))


def config(folder: Path, **sections: Any):
    values: dict[str, Any] = {
        "run_name": "checked",
        "iterations": 1,
        "model": {"name": "tiny-qwen3"},
        "data": {"type": "reasoning_gym", "task": "chain_sum"},
        "engine": {"kv_cache_gib": 0.25},
        "store": {"uri": f"file://{folder}/store"},
    }
    return check_config(values | sections)


def test_run_that_can_work_passes_and_leaves_no_object(tmp_path: Path) -> None:
    checked = check_run(config(tmp_path))
    assert checked.data.digest
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_every_section_is_heard_at_once(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    broken = config(
        tmp_path,
        model={"name": "gpt-9"},
        data={"type": "file", "uri": str(tmp_path / "none.jsonl")},
        reward={"terms": [{"name": "nobody"}]},
        adapter={"target_modules": ["q_prj"]},
        engine={"kv_cache_gib": 100000},
    )
    with pytest.raises(ConfigError) as caught:
        check_run(broken)
    head, *lines = str(caught.value).splitlines()
    assert head == "checked: 6 faults"
    fields = ["model.name", "data.uri", "reward.terms.0", "adapter.target_modules", "store.uri", "engine.kv_cache_gib"]
    assert [line.split(":")[0].strip() for line in lines] == fields


def test_targets_are_judged_by_whether_the_model_has_experts(tmp_path: Path) -> None:
    sparse = {"name": str(make_tiny_qwen3_moe(tmp_path / "moe"))}
    check_run(config(tmp_path, model=sparse, adapter={"target_modules": ["*.mlp.experts.*"]}))
    check_run(config(tmp_path, model=sparse, adapter={"exclude_modules": ["*.mlp.experts.*"]}))
    with pytest.raises(ConfigError, match="rslora"):
        check_run(config(tmp_path, model=sparse, adapter={"rslora": True}))
    with pytest.raises(ConfigError, match="target_modules"):
        check_run(config(tmp_path, adapter={"target_modules": ["*.mlp.experts.*"]}))


def test_memory_counts_every_process_of_every_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Memory", (), {"available": (RUNTIME_GIB + 4) * GIB})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    check_run(config(tmp_path, engine={"kv_cache_gib": 2, "replicas": 2}))
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_gib: 2 for 3 .* 10\.0 GiB, but 8\.0 GiB are free"):
        check_run(config(tmp_path, engine={"kv_cache_gib": 2, "replicas": 3}))
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_gib: 2 for 4 .* 12\.0 GiB"):
        check_run(config(tmp_path, engine={"kv_cache_gib": 2, "replicas": 2, "tensor_parallel": 2}))


def test_memory_is_not_asked_for_where_the_actors_stand_already_or_on_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 0}))
    check_run(config(tmp_path), starts_actors=False)
    monkeypatch.setattr("lora_rl.preflight._num_gpus", lambda: 2)
    check_run(config(tmp_path))


def test_layout_that_does_not_divide_the_model_is_refused(tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model")
    with pytest.raises(ConfigError) as caught:
        check_run(
            config(
                tmp_path,
                model={"name": str(model)},
                trainer={"tensor_parallel": 4, "pipeline_parallel": 3},
                engine={"tensor_parallel": 8},
            )
        )
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "trainer.tensor_parallel: 4 does not divide num_key_value_heads 2; use 1 or 2",
        "trainer.pipeline_parallel: 3 does not divide num_hidden_layers 2; use 1 or 2",
        "engine.tensor_parallel: 8 does not divide num_attention_heads 4; use 1 or 2 or 4",
    ]


def test_an_adapter_of_a_wider_base_is_refused(tmp_path: Path) -> None:
    init = make_peft_directory(tmp_path / "adapter", width=96)
    with pytest.raises(ConfigError, match=r"adapter\.init: .* is of a model 96 wide, model\.name is 64 wide; give"):
        check_run(config(tmp_path, adapter={"init": str(init)}))


def test_what_a_config_leaves_to_the_adapter_it_starts_from_is_filled_in(tmp_path: Path) -> None:
    init = make_peft_directory(tmp_path / "adapter", r=3, lora_alpha=6)
    checked = check_run(config(tmp_path, adapter={"init": str(init)}))
    assert (checked.adapter.rank, checked.adapter.alpha, checked.adapter.target_modules) == (
        3,
        6,
        ("q_proj", "down_proj"),
    )


def test_an_adapter_that_differs_is_one_fault_among_others(tmp_path: Path) -> None:
    init = make_peft_directory(tmp_path / "adapter", r=3)
    broken = config(tmp_path, adapter={"init": str(init), "rank": 8}, model={"name": "gpt-9"})
    with pytest.raises(ConfigError) as caught:
        check_run(broken)
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == ["model.name", "adapter.rank"]


def test_a_layer_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model")
    adapter = {"target_modules": ["*.layers.7.*"]}
    with pytest.raises(ConfigError, match=r"adapter.target_modules: '\*\.layers\.7\.\*' matches no projection"):
        check_run(config(tmp_path, adapter=adapter, model={"name": str(model)}))


def test_what_the_trainer_and_the_engine_would_refuse_of_a_model_is_known_before(tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"engine\.max_model_len: 4096 exceeds max_position_embeddings 2048"):
        check_run(config(tmp_path, model={"name": str(model)}, engine={"kv_cache_gib": 0.25, "max_model_len": 4096}))
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["Gemma3ForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"model\.name: .*: architecture Gemma3ForCausalLM is not supported; use one"):
        check_run(config(tmp_path, model={"name": str(model)}))


def test_a_kv_cache_that_holds_no_whole_request_is_refused(tmp_path: Path) -> None:
    model = {"name": str(make_tiny_qwen3(tmp_path / "model")), "dtype": "float32"}
    # 2 for keys and values, layers, key heads, their width, bytes; tokens
    needed_gib = 2 * 2 * 2 * 32 * 4 * 2048 / GIB
    check_run(config(tmp_path, model=model, engine={"kv_cache_gib": needed_gib}))
    check_run(config(tmp_path, model=model, engine={"kv_cache_gib": needed_gib / 2, "tensor_parallel": 2}))
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_gib: 0\.00097\d* is below the 0\.002 GiB of one"):
        check_run(config(tmp_path, model=model, engine={"kv_cache_gib": needed_gib / 2}))


@pytest.mark.parametrize(("gpus", "fits"), [(0, True), (1, False), (2, True)])
def test_gpus_are_counted_where_the_actors_start_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, fits: bool
) -> None:
    monkeypatch.setattr("lora_rl.preflight._num_gpus", lambda: gpus)
    check_run(config(tmp_path), starts_actors=False)
    if fits:
        check_run(config(tmp_path))
        return
    with pytest.raises(ConfigError, match=r"placement\.mode: disaggregated needs 2 GPUs .* set it to colocated"):
        check_run(config(tmp_path))


def test_the_store_is_not_touched_where_nothing_is_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    check_run(config(tmp_path), writes=False)
    with pytest.raises(ConfigError, match=r"store\.uri: "):
        check_run(config(tmp_path))
