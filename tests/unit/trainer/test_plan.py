import pytest

from lora_rl.trainer.plan import num_rows, plan, share_out
from tests.builders import make_sample, make_training_samples


def _plan(samples_by_slot, *, max_tokens=4096, num_copies=1):
    indexed = {slot: dict(enumerate(samples)) for slot, samples in samples_by_slot.items()}
    return plan(indexed, max_tokens=max_tokens, num_copies=num_copies)


@pytest.mark.parametrize("num_copies", [1, 2, 3, 4])
@pytest.mark.parametrize("max_tokens", [24, 40, 4096])
def test_each_sample_is_in_one_micro_batch_and_every_copy_runs_equally_many(num_copies, max_tokens):
    samples = {1: make_training_samples(seed=1), 0: make_training_samples(seed=2)}
    batches = _plan(samples, max_tokens=max_tokens, num_copies=num_copies)
    places = [(entry.slot, entry.index) for batch in batches for entry in batch]
    assert places == sorted(places, key=lambda place: place[0])
    assert sorted(places) == [(slot, index) for slot in (0, 1) for index in range(len(samples[slot]))]
    assert all(num_rows(batch) <= max_tokens for batch in batches)
    shares = share_out(batches, num_copies)
    assert {len(share) for share in shares} == {len(batches) // num_copies}
    assert sorted(number for share in shares for number in share) == list(range(len(batches)))


def test_copies_have_about_as_many_rows():
    samples = {0: [sample for seed in range(8) for sample in make_training_samples(seed=seed)]}
    batches = _plan(samples, max_tokens=4096, num_copies=4)
    loads = [sum(num_rows(batches[number]) for number in share) for share in share_out(batches, 4)]
    assert len(batches) == 4
    assert max(loads) < 1.2 * sum(loads) / 4


def test_what_runs_in_the_same_round_is_of_similar_size():
    lengths = [40, 3, 3, 40, 3, 40, 40, 3]
    samples = [
        make_sample(prompt_tokens=[place], response_tokens=[1] * length, logp_rollout=[0.0] * length)
        for place, length in enumerate(lengths)
    ]
    batches = _plan({0: samples}, max_tokens=40, num_copies=2)
    sizes = [[num_rows(batches[number]) for number in share] for share in share_out(batches, 2)]
    assert all(abs(first - second) <= 6 for first, second in zip(*sizes, strict=True))


def test_one_copy_fills_micro_batches_in_order():
    batches = _plan({0: make_training_samples()}, max_tokens=40)
    assert share_out(batches, 1) == [list(range(len(batches)))]


def test_too_few_samples_leave_idle_micro_batches():
    batches = _plan({3: [make_sample()]}, num_copies=3)
    assert [len(batch) for batch in batches] == [1, 0, 0]


def test_nothing_to_plan_gives_no_micro_batch():
    assert _plan({0: []}, num_copies=2) == []
    assert share_out([], 2) == [[], []]
