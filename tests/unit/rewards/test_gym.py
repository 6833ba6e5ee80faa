from typing import Any

import pytest
import reasoning_gym as library

from lora_rl.data import exact_json
from lora_rl.data.types import Sample
from lora_rl.errors import DataError
from lora_rl.rewards.gym import reasoning_gym
from tests.builders import make_sample


def sample_of(task: str, text: str | None = None) -> Sample:
    """A sample of the family's first task, as the store gives it back; answered rightly unless `text` is given."""
    entry: dict[str, Any] = library.create_dataset(task, size=1, seed=1)[0]
    metadata = exact_json.loads(exact_json.dumps(entry["metadata"]))
    return make_sample(
        prompt_text=entry["question"],
        label=entry["answer"],
        response_text=entry["answer"] if text is None else text,
        metadata=metadata,
    )


@pytest.mark.parametrize("task", ["chain_sum", "letter_counting", "arc_agi", "kakurasu", "countdown"])
def test_right_answer_scores_one(task: str) -> None:
    assert reasoning_gym(sample_of(task)) == 1.0


def test_score_is_that_of_the_family_with_its_partial_credit() -> None:
    label = sample_of("chain_sum").label
    assert label is not None
    text = f"so {label}"
    assert reasoning_gym(sample_of("chain_sum", text)) == pytest.approx(len(label) / len(text))
    assert reasoning_gym(sample_of("chain_sum", "no")) < 0.1


@pytest.mark.parametrize("task", ["graph_color", "rush_hour"])
def test_family_without_a_label_checks_the_answer_by_itself(task: str) -> None:
    sample = sample_of(task, "no idea")
    assert sample.label is None
    assert reasoning_gym(sample) < 0.1


def test_tag_names_where_the_answer_stands() -> None:
    right = sample_of("chain_sum", f"hm, 3? <answer> {sample_of('chain_sum').label} </answer>")
    assert reasoning_gym(right, tag="answer") == 1.0
    assert reasoning_gym(sample_of("chain_sum"), tag="answer") == 0.0


def test_sample_from_other_data_is_an_error_with_the_mend() -> None:
    with pytest.raises(DataError, match="source_dataset"):
        reasoning_gym(make_sample())
