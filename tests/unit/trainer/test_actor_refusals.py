"""What the trainer refuses: adapters, states and samples that cannot be, or do not belong together."""

import dataclasses

import pytest

from lora_rl.config import AdapterConfig, AlgorithmConfig
from lora_rl.errors import ConfigError, DataError, DigestMismatch, StoreError, TrainerError
from lora_rl.models.tiny import make_tiny_qwen3
from tests.unit.trainer.actor_run import ADAPTER, Run, started_trainer


@pytest.mark.parametrize(
    ("adapter", "text"),
    [
        (AdapterConfig(rank=9), r"adapter.rank: 9 exceeds trainer.max_rank 8"),
        (AdapterConfig(rank=4, target_modules=("q_porj",)), r"'q_porj' matches no projection"),
        (AdapterConfig(rank=4, target_modules=("*.layers.7.*",)), r"layers\.7\.\*' matches no projection"),
        (AdapterConfig(rank=4, only_train=("lora_C",)), r"'lora_C' matches nothing"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(adapter, text, run):
    with pytest.raises(ConfigError, match=text):
        run.new(adapter)


@pytest.mark.parametrize(
    "fields",
    [{"rank": 8, "alpha": 16.0}, {"alpha": 4.0}, {"target_modules": ("q_proj",)}, {"rslora": True}, {"type": "lora"}],
)
def test_a_state_of_another_adapter_is_refused(fields, run):
    with pytest.raises(ConfigError, match="the values that the run began with"):
        run.step(run.new(), run.samples(), ADAPTER.model_copy(update=fields))


def test_a_state_of_another_base_is_refused(run, device, tmp_path):
    other = Run(started_trainer(make_tiny_qwen3(tmp_path / "other", seed=1), device), run.config.uri)
    with pytest.raises(TrainerError, match="use the model that the run began with"):
        run.step(other.new(), run.samples())


def test_missing_and_damaged_states_are_refused(run):
    start = run.new()
    with pytest.raises(StoreError, match="missing"):
        run.step(dataclasses.replace(start, key="cas/state/none"), run.samples())
    empty = run.store.put_blob("state", b"")
    with pytest.raises(DataError, match="no train state"):
        run.step(empty, run.samples())
    run.store.write(start.key, b"\0" * start.size)
    with pytest.raises(DigestMismatch):
        run.step(start, run.samples())


def test_samples_that_cannot_be_trained_are_refused(run):
    start = run.new()
    with pytest.raises(DataError, match="not a whole Parquet"):
        run.step(start, run.store.put_blob("samples", b"x"))
    with pytest.raises(DataError, match="vocabulary of 512"):
        run.step(start, run.samples(0, lambda sample: dataclasses.replace(sample, prompt_tokens=[512])))


def test_too_large_a_mismatch_stops_before_the_step(run):
    start, samples = run.new(), run.samples()
    expected = run.step(start, samples).state
    with pytest.raises(TrainerError, match=r"max_mismatch 0.001; check that both run the same base"):
        run.step(start, samples, algorithm=AlgorithmConfig(max_mismatch=0.001))
    assert run.step(start, samples).state == expected
