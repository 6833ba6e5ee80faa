"""The learning benchmark on this engine: it calls the actors as a run does, without Ray and Prefect."""

import json
from pathlib import Path

import pytest

from benchmarks.learning import SHOWN, held_out, learn
from lora_rl.config import RunConfig
from lora_rl.engine.actor import EngineActor
from tests.builders import make_run_config

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def config(model_path: Path) -> RunConfig:
    return make_run_config(
        iterations=2,
        model={"name": str(model_path), "dtype": "float32"},
        data={"type": "reasoning_gym", "task": "chain_sum", "params": {"max_terms": 2, "max_digits": 1}},
        sampling={
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 4,
            "max_prompt_tokens": 192,
            "max_response_tokens": 16,
        },
        reward={"workers": 1, "terms": [{"name": "format", "params": {"pattern": ".*[0-9].*"}}]},
        adapter={"name": "learning", "rank": 4, "optimizer": {"lr": 1e-2}},
        trainer={"max_rank": 4, "threads": 1},
    )


async def test_a_run_is_evaluated_before_within_and_after_and_serves_what_it_has_learned(
    engine: EngineActor, config: RunConfig, tmp_path: Path
):
    prompts = held_out(config, 4)
    evaluations = await learn(config, engine, prompts, tmp_path, minutes=1000, every=1, score="format")
    assert [each.iterations for each in evaluations] == [0, 1, 2]
    assert all(0 <= each.score <= 1 and 0 < each.tokens <= 16 for each in evaluations)
    assert evaluations[0].minutes == 0 < evaluations[1].minutes < evaluations[2].minutes
    document = json.loads((tmp_path / "learning.json").read_text())
    assert len(document["evaluations"]) == 3
    for iteration in document["iterations"]:
        assert set(SHOWN) < iteration.keys()
        assert iteration["mismatch/logp_abs/mean"] < 1e-4
    assert len(document["iterations"]) == 2
    assert {file.name for file in tmp_path.iterdir()} == {"learning.json", "learning.md", "learning.png", "adapter"}
    assert json.loads((tmp_path / "adapter" / "manifest.json").read_text())["version"] == 2
    assert "learning@2" in await engine.serving()


async def test_a_run_whose_minutes_are_over_ends_after_its_iteration_and_an_evaluation(
    engine: EngineActor, config: RunConfig, tmp_path: Path
):
    evaluations = await learn(config, engine, held_out(config, 1), tmp_path, minutes=0, every=20, score="format")
    assert [each.iterations for each in evaluations] == [0, 1]
