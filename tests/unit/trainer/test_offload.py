import torch
from torch import nn

from lora_rl.trainer.offload import Offload


def memory(*tensors: torch.Tensor) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_everything_comes_back_bit_by_bit_in_the_same_tensors() -> None:
    frozen = nn.Linear(5, 7, dtype=torch.bfloat16)
    master, moment = nn.Parameter(torch.randn(4, 4)), torch.randn(4, 4)
    master.grad = torch.full((4, 4), float("nan"))
    before = [tensor.clone() for tensor in (*frozen.parameters(), master, moment)]
    offload = Offload(frozen.parameters())
    for _ in range(2):
        assert offload.offload([master, master.grad, moment]) == (7 * 5 + 7) * 2 + 3 * 4 * 16
        assert offload.away
        assert memory(*frozen.parameters(), master, master.grad, moment) == 0
        offload.onload()
        assert not offload.away
        after = [*frozen.parameters(), master, moment]
        assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
        assert master.grad.isnan().all()


def test_what_shares_memory_moves_once_and_still_shares_it() -> None:
    whole = torch.arange(12.0).view(3, 4)
    part, turned = whole[1:], whole.T
    offload = Offload([])
    assert offload.offload([whole, part]) == 48
    assert memory(turned) == 0
    offload.onload()
    assert torch.equal(turned, torch.arange(12.0).view(3, 4).T)
    part.zero_()
    assert whole[1:].eq(0).all()


def test_what_changed_between_two_turns_comes_back_changed() -> None:
    master = torch.zeros(3)
    offload = Offload([])
    for number in range(3):
        master += 1
        offload.offload([master])
        offload.onload()
        assert master.eq(number + 1).all()


def test_a_tensor_that_is_frozen_and_shared_by_a_changing_one_moves_once() -> None:
    tied = torch.ones(4)
    offload = Offload([tied])
    assert offload.offload([tied[2:]]) == 16
    offload.onload()
    assert tied.eq(1).all()
