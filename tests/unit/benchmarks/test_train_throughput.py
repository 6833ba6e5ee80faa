"""The throughput benchmark's steps on a tiny model: it builds the trainer of its own parts, without the actor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.shapes import COMMON, SHAPES, make_checkpoint
from benchmarks.train_throughput import OUT_OF_MEMORY, Case, Table, numbers_of, our_step, ours, their_step, theirs
from lora_rl.trainer.plan import num_rows, plan
from tests.tolerances import FORMULA

TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
CASE = Case.of("4x24:1,2")
ADAPTED = 2 * 7
"""Linear layers of the tiny model."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen3Config]:
    path = tmp_path_factory.mktemp("models") / "tiny"
    return path, make_checkpoint(TINY, path, device="cpu")


@pytest.fixture(scope="module", params=[False, True], ids=["stored", "recompute"])
def recompute(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def built(checkpoint: tuple[Path, Qwen3Config], recompute: bool) -> Iterator[Any]:
    """Our model and its slots."""
    with ours(checkpoint[0], recompute) as parts:
        yield parts


@pytest.mark.parametrize("slots", CASE.slots)
def test_a_case_is_one_micro_batch_of_its_tokens_however_many_slots_share_it(slots: int):
    batches = CASE.samples(TINY["vocab_size"], slots)
    planned = plan({slot: dict(enumerate(samples)) for slot, samples in enumerate(batches)}, max_tokens=CASE.total)
    assert len(batches) == slots
    assert [num_rows(batch) for batch in planned] == [CASE.total]


@pytest.mark.parametrize("slots", CASE.slots)
def test_our_step_computes_the_tokens_of_all_slots_and_leaves_each_its_gradient(built: Any, slots: int):
    model, bank = built
    step = our_step(model, bank, CASE, slots)
    metrics = step.run()
    assert sorted(metrics) == list(range(slots))
    assert {each["train/packed_rows"] for each in metrics.values()} == {CASE.total}
    assert len(step.leaves) == slots * ADAPTED * 2
    # A fresh B is zero: its gradient tells whether the slot's rows had a loss, that of A is zero too.
    assert all(leaf.grad is not None and leaf.any() != leaf.grad.any() for leaf in step.leaves)
    step.drop_gradients()
    assert all(leaf.grad is None for leaf in step.leaves)
    for slot in range(slots):
        bank.clear(slot)


def test_their_step_trains_as_many_parameters_as_one_slot_of_ours(
    checkpoint: tuple[Path, Qwen3Config], recompute: bool, built: Any
):
    _, config = checkpoint
    model, bank = built
    own = our_step(model, bank, CASE, 1)
    with theirs(config, recompute, device="cpu") as other:
        step = their_step(other, config, CASE)
        step.run()
        assert sum(leaf.numel() for leaf in step.leaves) == sum(leaf.numel() for leaf in own.leaves)
        assert all(leaf.grad is not None and leaf.any() != leaf.grad.any() for leaf in step.leaves)


def test_the_arithmetic_is_that_of_the_models_own_matrix_products():
    config, case = Qwen3Config(**COMMON | SHAPES["qwen3-0.6b"]), Case.of("2x2048")
    with torch.device("meta"):
        model = Qwen3ForCausalLM._from_config(config, attn_implementation="eager")
        tokens = torch.zeros(case.sequences, case.tokens, dtype=torch.long)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=tokens)
    forward = {str(operation): flops for operation, flops in counter.get_flop_counts()["Global"].items()}
    # The base has no gradient of its weights; the mask leaves half of the attention, whose gradient costs 2.5 times it.
    expected = 2 * forward["aten.mm"] + 3.5 * forward["aten.bmm"] / 2
    assert case.flops(config) == pytest.approx(expected, rel=FORMULA)


def test_all_rows_have_the_columns_of_the_table(tmp_path: Path):
    table = Table(tmp_path / "results.md", minutes=1)
    table.add("lora-rl", "tiny", CASE, numbers_of(CASE, Qwen3Config(**TINY), 0.5, 1.25))
    table.add("transformers + PEFT", "tiny", CASE, OUT_OF_MEMORY)
    lines = [line.split("|")[1:-1] for line in (tmp_path / "results.md").read_text().splitlines() if line[:1] == "|"]
    assert [len(cells) for cells in lines] == [len(Table.HEADER)] * 4
    assert dict(zip(Table.HEADER, map(str.strip, lines[2]), strict=True)) == {
        "shape": "tiny",
        "by": "lora-rl",
        "case": "4x24",
        "tokens/s": "192",
        "TFLOP/s": "0",
        "of peak": "0 %",
        "peak GiB": "1.2",
    }
    assert not table.over
