import torch

from lora_rl.trainer.lora_rows import Span, pad_last, project_down, project_up, seeded_generator
from tests.tolerances import FORMULA

SPANS = (Span(slot=0, start=0, stop=3), Span(slot=2, start=3, stop=4), Span(slot=5, start=4, stop=9))
RANKS = (2, 4, 3)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_each_span_is_projected_by_its_own_weights_and_rank():
    x_TK, weights = _draw(9, 6), [_draw(3, rank, 6, seed=rank) for rank in RANKS]
    down_TPR = project_down(x_TK, SPANS, weights)
    assert down_TPR.shape == (9, 3, 4)
    for span, weight, rank in zip(SPANS, weights, RANKS, strict=True):
        for part in range(3):
            expected = x_TK[span.rows] @ weight[part].T
            assert (down_TPR[span.rows, part, :rank] - expected).abs().max() < FORMULA * 10
            assert not down_TPR[span.rows, part, rank:].any()


def test_the_way_up_ignores_what_lies_beyond_a_span_s_rank():
    down_TR, weights = _draw(9, 4), [_draw(7, rank, seed=rank) for rank in RANKS]
    up_TN = project_up(down_TR, SPANS, weights)
    for span, weight, rank in zip(SPANS, weights, RANKS, strict=True):
        assert (up_TN[span.rows] - down_TR[span.rows, :rank] @ weight.T).abs().max() < FORMULA * 10


def test_a_span_without_weights_gets_zeros():
    down_TPR = project_down(_draw(9, 6), SPANS, [_draw(1, 2, 6), torch.zeros(1, 0, 6), _draw(1, 2, 6)])
    assert not down_TPR[3:4].any()
    assert not project_up(_draw(9, 2), SPANS, [_draw(7, 2), torch.zeros(7, 0), _draw(7, 2)])[3:4].any()


def test_gradient_of_a_weight_comes_from_its_own_rows_alone():
    weights = [_draw(1, 2, 6, seed=seed).requires_grad_() for seed in range(3)]
    down_TPR = project_down(_draw(9, 6), SPANS, weights)
    down_TPR[SPANS[2].rows].sum().backward()
    assert [weight.grad is not None and bool(weight.grad.any()) for weight in weights] == [False, False, True]


def test_padding_keeps_values_and_adds_zeros():
    assert pad_last(torch.ones(2, 2), 3).tolist() == [[1, 1, 0], [1, 1, 0]]
    assert pad_last(torch.ones(2, 3), 3).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_seeded_stream_follows_from_its_text():
    cpu = torch.device("cpu")
    first, again, other = (torch.rand(4, generator=seeded_generator(text, cpu)) for text in ("0/a", "0/a", "1/a"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
