"""Procedural tasks repeat, and carry what their scorer needs through the store."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from reasoning_gym.factory import DATASETS, get_score_answer_fn

from lora_rl.config.data import ReasoningGymData
from lora_rl.data.procedural import HASH_DEPENDENT
from lora_rl.data.rows import open_rows
from lora_rl.data.samples_io import read_samples, write_samples
from lora_rl.errors import ConfigError
from tests.builders import make_sample


def test_the_same_seed_gives_the_same_tasks_and_neighbouring_seeds_share_none():
    config = ReasoningGymData(task="chain_sum", params={"min_digits": 4, "max_digits": 4})
    first, again, other = (open_rows(config, seed=seed) for seed in (0, 0, 1))
    questions = [[rows[index].input for index in range(20)] for rows in (first, again, other)]
    assert questions[0] == questions[1]
    assert not set(questions[0]) & set(questions[2])


@pytest.mark.parametrize("task", ["chain_sum", "rearc"])
def test_a_right_answer_scores_full_after_a_round_trip_through_the_store(task):
    row = open_rows(ReasoningGymData(task=task), seed=0)[3]
    (sample,) = read_samples(write_samples([make_sample(label=row.label, metadata=row.metadata)]))
    score: Callable[..., float] = get_score_answer_fn(task)
    assert score(row.label, {"question": row.input, "answer": sample.label, "metadata": sample.metadata}) == 1.0


def test_metadata_with_tuples_and_integer_keys_survives_the_store():
    row = open_rows(ReasoningGymData(task="graph_color"), seed=0)[3]
    (sample,) = read_samples(write_samples([make_sample(metadata=row.metadata)]))
    assert set(map(type, row.metadata["possible_answer"])) == {int}
    assert sample.metadata == row.metadata


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ReasoningGymData(task="chain_sums"), "data.task: 'chain_sums' is unknown to reasoning-gym; it has chain_sum"),
        (ReasoningGymData(task="chain_sum", params={"terms": 2}), r"data.params: .* do not suit chain_sum .*'terms'"),
        (ReasoningGymData(task="chain_sum", params={"min_terms": -1}), "data.params: .* do not suit chain_sum"),
        (ReasoningGymData(task="chain_sum", params={"seed": 1}), "data.params: seed follow from the run's seed"),
        (ReasoningGymData(task="word_ladder"), "differs from process to process.*PYTHONHASHSEED=0"),
    ],
)
def test_a_task_that_cannot_work_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        open_rows(config, seed=0)


QUESTIONS = """
import reasoning_gym
from reasoning_gym.factory import DATASETS
for task in sorted(DATASETS):
    if task != "composite":
        data = reasoning_gym.create_dataset(task, size=50, seed=1)
        print(task, repr([data[index] for index in (3, 7)]).encode().hex())
"""


def test_exactly_the_named_tasks_depend_on_the_hash_seed():
    runs = [
        subprocess.run([sys.executable, "-c", QUESTIONS], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    first, second = (dict(line.split() for line in run.stdout.decode().splitlines()) for run in runs)
    assert len(first) == len(DATASETS) - 1
    assert tuple(task for task in first if first[task] != second[task]) == HASH_DEPENDENT
