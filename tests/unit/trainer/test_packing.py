import pytest
import torch

from lora_rl.errors import DataError
from lora_rl.trainer.packing import MicroBatch, pack
from tests.builders import make_sample, make_training_samples

CPU = torch.device("cpu")


def _pack(samples_by_slot, max_tokens=4096) -> list[MicroBatch]:
    indexed = {slot: dict(enumerate(samples)) for slot, samples in samples_by_slot.items()}
    return pack(indexed, max_tokens=max_tokens, device=CPU, dtype=torch.float32)


def test_samples_of_one_prompt_share_its_rows():
    samples = [
        make_sample(prompt_tokens=[5, 6, 7], response_tokens=[1, 2]),
        make_sample(prompt_tokens=[5, 6, 7], response_tokens=[3, 4, 8]),
    ]
    (batch,) = _pack({0: samples})
    assert batch.tokens_T.tolist() == [5, 6, 7, 1, 3, 4]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 3, 4]


def test_each_response_token_is_predicted_by_the_row_before_it():
    samples = [
        make_sample(prompt_tokens=[5, 6], response_tokens=[1, 2]),
        make_sample(prompt_tokens=[5, 6], response_tokens=[3]),
    ]
    (batch,) = _pack({0: samples})
    assert batch.targets_N.tolist() == [1, 2, 3]
    assert batch.rows_N.tolist() == [1, 2, 1]


@pytest.mark.parametrize("max_tokens", [24, 40, 4096])
def test_each_sample_is_in_exactly_one_micro_batch_within_the_budget(max_tokens):
    samples = {1: make_training_samples(seed=1), 0: make_training_samples(seed=2)}
    batches = _pack(samples, max_tokens)
    places = [(piece.slot, piece.sample) for batch in batches for piece in batch.pieces]
    assert sorted(places) == [(slot, index) for slot in (0, 1) for index in range(len(samples[slot]))]
    assert all(len(batch.tokens_T) <= max_tokens for batch in batches)
    for batch in batches:
        for piece in batch.pieces:
            assert batch.targets_N[piece.tokens].tolist() == samples[piece.slot][piece.sample].response_tokens


def test_rows_are_sorted_by_slot_and_spans_cover_them():
    (batch,) = _pack({2: make_training_samples(seed=1), 0: make_training_samples(seed=2)})
    assert batch.spans[0].start == 0
    assert [span.slot for span in batch.spans] == [0, 2]
    assert batch.spans[0].stop == batch.spans[1].start
    assert batch.spans[1].stop == len(batch.tokens_T)
    assert batch.tokens_of(0).stop == batch.tokens_of(2).start
    assert batch.tokens_of(2).stop == len(batch.targets_N)


def test_the_same_prompt_in_two_slots_is_not_shared():
    (batch,) = _pack({0: [make_sample()], 1: [make_sample()]})
    assert len(batch.tokens_T) == 2 * (3 + 1)


def test_packing_is_the_same_each_time():
    first, second = (_pack({0: make_training_samples()}, 40) for _ in range(2))
    assert [batch.tokens_T.tolist() for batch in first] == [batch.tokens_T.tolist() for batch in second]


def test_a_sample_above_the_budget_is_refused():
    with pytest.raises(DataError, match=r"0/0/0: 14 tokens exceed trainer.max_tokens_per_gpu 13"):
        _pack({0: [make_sample(response_tokens=[1] * 12, logp_rollout=[0.0] * 12)]}, 13)


@pytest.mark.parametrize("empty", ["prompt_tokens", "response_tokens"])
def test_a_sample_without_prompt_or_response_is_refused(empty):
    with pytest.raises(DataError, match="one or more of each"):
        _pack({0: [make_sample(**{empty: []})]})


def test_nothing_to_pack_gives_no_micro_batch():
    assert _pack({0: []}) == []


def test_an_idle_micro_batch_has_one_row_of_a_slot_and_no_sample():
    samples = {3: {0: make_sample()}}
    full, idle = (
        pack(samples, max_tokens=64, device=CPU, dtype=torch.float32, copy=copy, num_copies=2)[0] for copy in range(2)
    )
    assert [piece.sample for piece in full.pieces] == [0]
    assert idle.pieces == ()
    assert idle.tokens_T.tolist() == [0]
    assert [(span.slot, span.start, span.stop) for span in idle.spans] == [(3, 0, 1)]
    assert (full.number, idle.number) == (0, 1)
