import pytest
import torch

from lora_rl.algorithms.whitening import centre, whiten
from tests.tolerances import FORMULA


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.3, 1e6])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_equal_values_give_exact_zeros_in_float32(value: float, count: int) -> None:
    values_N = torch.full((count,), value)
    assert not centre(values_N).any()
    assert not whiten(values_N).any()


def test_whitened_values_have_sample_deviation_one() -> None:
    whitened_N = whiten(torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=torch.float64), eps=0.0)
    assert whitened_N.mean().item() == pytest.approx(0.0, abs=FORMULA)
    assert whitened_N.std().item() == pytest.approx(1.0, abs=FORMULA)


def test_nothing_to_whiten_gives_nothing() -> None:
    assert whiten(torch.tensor([])).shape == (0,)
