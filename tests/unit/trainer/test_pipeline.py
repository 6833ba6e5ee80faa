import pytest

from lora_rl.trainer.pipeline import one_forward_one_backward

SIZES = [(1, 3), (2, 1), (2, 5), (4, 2), (4, 4), (4, 9)]


@pytest.mark.parametrize(("num_stages", "num_batches"), SIZES)
def test_every_stage_runs_each_micro_batch_forward_then_backward_in_order(num_stages, num_batches):
    for stage in range(num_stages):
        turns = list(one_forward_one_backward(stage, num_stages, num_batches))
        for direction in ("forward", "backward"):
            assert [number for way, number in turns if way == direction] == list(range(num_batches))
        assert all(turns.index(("forward", n)) < turns.index(("backward", n)) for n in range(num_batches))


@pytest.mark.parametrize(("num_stages", "num_batches"), SIZES)
def test_stages_that_wait_for_each_other_all_come_to_their_end(num_stages, num_batches):
    turns = [list(one_forward_one_backward(stage, num_stages, num_batches)) for stage in range(num_stages)]
    done: set[tuple[int, str, int]] = set()
    progress = True
    while progress:
        progress = False
        for stage, left in enumerate(turns):
            if not left:
                continue
            direction, number = left[0]
            source = stage - 1 if direction == "forward" else stage + 1
            if source in (-1, num_stages) or (source, direction, number) in done:
                done.add((stage, *left.pop(0)))
                progress = True
    assert not any(turns)


def test_a_stage_holds_no_more_micro_batches_than_stages_follow():
    for stage in range(4):
        held = most = 0
        for direction, _ in one_forward_one_backward(stage, 4, 9):
            held += 1 if direction == "forward" else -1
            most = max(most, held)
        assert most == 4 - stage


def test_one_stage_goes_backward_at_once():
    assert list(one_forward_one_backward(0, 1, 2)) == [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)]
