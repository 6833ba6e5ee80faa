"""The whole config: digest, texts of fields, imports, examples."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from lora_rl.config import RunConfig, check_config, differences, load_config
from lora_rl.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("**/*.yaml"))


def make_config(**changes) -> RunConfig:
    values = {"iterations": 2, "model": {"name": "m"}, "data": {"type": "file", "uri": "x.jsonl"}}
    return check_config(values | changes)


def sections(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """All config classes reachable from `model`."""
    if model in seen:
        return seen
    seen.add(model)
    pending = [field.annotation for field in model.model_fields.values()]
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            sections(annotation, seen)
        pending.extend(getattr(annotation, "__args__", ()))
    return seen


def test_every_leaf_field_has_a_text():
    classes = sections(RunConfig, set())
    assert len(classes) > 12
    for section in classes:
        for name, field in section.model_fields.items():
            is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert is_section or name in ("type", "data") or field.description, f"{section.__name__}.{name}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads(path):
    assert load_config(path).iterations > 0


def test_importing_the_config_brings_in_nothing_heavy():
    code = "import sys, lora_rl.config; print([m for m in ('torch', 'ray', 'vllm', 'prefect') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_digest_follows_what_decides_the_result_and_nothing_else():
    base = make_config()
    assert make_config(iterations=9, run_name="x", store={"uri": "file:///y"}).sha256 == base.sha256
    assert make_config(placement={"mode": "colocated"}, trainer={"tensor_parallel": 2}).sha256 == base.sha256
    assert make_config(seed=1).sha256 != base.sha256
    assert make_config(adapter={"rank": 8}).sha256 != base.sha256


def test_engine_rank_is_the_next_that_vllm_takes():
    assert make_config(trainer={"max_rank": 64}).engine_max_rank == 64
    assert make_config(trainer={"max_rank": 33}).engine_max_rank == 64
    assert make_config(trainer={"max_rank": 400}).engine_max_rank == 512


def test_a_colocated_engine_leaves_room_for_what_the_trainer_keeps_on_the_gpu():
    engine = {"gpu_memory_utilization": 0.95}
    assert make_config(engine=engine).placement.mode == "disaggregated"
    with pytest.raises(ConfigError, match=r"engine\.gpu_memory_utilization: 0\.95 exceeds 0\.9"):
        make_config(engine=engine, placement={"mode": "colocated"})


def test_graphs_that_would_never_run_are_refused():
    sizes = {"cuda_graph_sizes": [8, 256]}
    assert make_config(engine=sizes | {"enforce_eager": False}).engine.cuda_graph_sizes == (8, 256)
    with pytest.raises(ConfigError, match=r"engine\.cuda_graph_sizes: \[8, 256\] are never used"):
        make_config(engine=sizes)
    with pytest.raises(ConfigError, match=r"engine\.cuda_graph_sizes"):
        make_config(engine={"cuda_graph_sizes": [8, 0], "enforce_eager": False})


def test_differences_name_nested_fields_with_both_values():
    ours, theirs = make_config(adapter={"rank": 8}), make_config()
    lines = differences(ours.model_dump(mode="json"), theirs.model_dump(mode="json"))
    assert lines == ["adapter.rank: 32 -> 8"]


def test_scaling_is_peft_s():
    assert make_config(adapter={"rank": 16, "alpha": 32}).adapter.scaling == 2
    assert make_config(adapter={"rank": 16, "alpha": 32, "rslora": True}).adapter.scaling == 8


def test_experts_are_shared_among_copies_alone():
    assert make_config(trainer={"data_parallel": 4, "expert_parallel": 2, "tensor_parallel": 2}).trainer.world_size == 8
    with pytest.raises(ConfigError, match=r"trainer\.expert_parallel: 4 does not divide trainer\.data_parallel 2"):
        make_config(trainer={"data_parallel": 2, "expert_parallel": 4})


def test_options_of_an_algorithm_that_would_do_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.tis_clip: 3 has no effect with old_logp rollout"):
        make_config(algorithm={"tis_clip": 3})
    assert make_config(algorithm={"tis_clip": 3, "old_logp": "recompute"}).algorithm.tis_clip == 3
    assert make_config(algorithm={"tis_clip": None}).algorithm.tis_clip is None
    k1 = {"coefficient": 0.1, "estimator": "k1"}
    with pytest.raises(ConfigError, match=r"algorithm\.kl\.estimator: k1 in the loss has a gradient of zero"):
        make_config(algorithm={"kl": k1})
    kl = make_config(algorithm={"kl": k1 | {"where": "reward"}}).algorithm.kl
    assert kl is not None
    assert kl.where == "reward"


@pytest.mark.parametrize("field", ["icepop", "sequence_mask", "geometric_mask"])
def test_a_band_of_ratios_holds_one(field):
    assert make_config(algorithm={field: {"low": 0.5, "high": 5}}) != make_config()
    with pytest.raises(ConfigError, match=rf"algorithm\.{field}\.low: 1\.5: input should be less than or equal to 1"):
        make_config(algorithm={field: {"low": 1.5, "high": 5}})
    with pytest.raises(ConfigError, match=rf"algorithm\.{field}\.high: 0\.9: .* greater than or equal to 1"):
        make_config(algorithm={field: {"low": 0.5, "high": 0.9}})
