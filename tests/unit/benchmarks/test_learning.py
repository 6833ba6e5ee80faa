"""What the learning benchmark asks and writes, without its actors."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.learning import Curve, Evaluation, held_out
from lora_rl.config import RunConfig
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.sources import open_source
from lora_rl.errors import DataError
from lora_rl.models.tiny import make_tokenizer
from tests.builders import make_run_config

SUMS = {
    "type": "reasoning_gym",
    "task": "chain_sum",
    "params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
"""Some 200 tasks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much of a model as prompts need."""
    path = tmp_path_factory.mktemp("models") / "tokenizer"
    make_tokenizer(512).save_pretrained(path)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return path


def make_config(model: Path, data: dict[str, Any] = SUMS, **fields: Any) -> RunConfig:
    fields = {"iterations": 5, "sampling": {"rollout_batch_size": 16, "n_samples_per_prompt": 2}} | fields
    return make_run_config(model={"name": str(model)}, data=data, **fields)


@pytest.mark.parametrize(("rounds", "trained"), [(None, 80), (2, 160)], ids=["each prompt once", "groups replaced"])
def test_held_out_prompts_all_differ_and_the_run_trains_on_none(model: Path, rounds: int | None, trained: int):
    algorithm = {} if rounds is None else {"dynamic_sampling": {"max_rounds": rounds}}
    config = make_config(model, algorithm=algorithm)
    texts = [prompt.text for prompt in held_out(config, 40)]
    source = open_source(config.data, ChatRenderer(model), seed=config.seed)
    drawn = source.take(0, trained, max_prompt_tokens=config.sampling.max_prompt_tokens)
    assert len(set(texts)) == 40
    assert not set(texts) & {prompt.text for prompt in drawn.prompts}


def test_a_task_that_has_no_other_prompts_than_those_trained_on_is_refused(model: Path, tmp_path: Path):
    rows = [{"prompt": f"{number} + 1 = ", "answer": str(number + 1)} for number in range(3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = make_config(model, {"type": "file", "uri": str(file)})
    with pytest.raises(DataError, match=r"held out: 0 of 200 prompts are no training prompts, 2 are wanted"):
        held_out(config, 2)


def test_a_curve_writes_its_numbers_its_table_and_its_picture(model: Path, tmp_path: Path):
    curve = Curve("exact")
    for done, score in ((0, 0.125), (2, 0.5)):
        curve.evaluations.append(Evaluation(iterations=done, minutes=done / 4, score=score, tokens=3.25))
        curve.write(tmp_path, make_config(model))
        assert (tmp_path / "learning.png").exists() == (done > 0)
        curve.iterations.append({"reward/total/mean": score})
    document = json.loads((tmp_path / "learning.json").read_text())
    assert [each["score"] for each in document["evaluations"]] == [0.125, 0.5]
    assert document["iterations"] == [{"reward/total/mean": 0.125}]
    assert document["config"]["model"]["name"] == str(model)
    rows = [line for line in (tmp_path / "learning.md").read_text().splitlines() if line.startswith("|")]
    assert "held out: exact" in rows[0]
    assert rows[2:] == ["| 0 | 0.0 | **12.5%** | 3.2 |", "| 2 | 0.5 | **50.0%** | 3.2 |"]
    assert Image.open(io.BytesIO((tmp_path / "learning.png").read_bytes())).width > 100
