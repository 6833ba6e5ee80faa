import torch

from lora_rl.trainer import lora_rows
from lora_rl.trainer.lora_rows import Routing, Span, outer, project, seeded_generator
from tests.tolerances import FORMULA

SPANS = (Span(slot=0, start=0, stop=3), Span(slot=2, start=3, stop=4), Span(slot=5, start=4, stop=9))
ROUTING = Routing(spans=SPANS)
WIDTHS = (2, 4, 3)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_each_span_is_projected_by_its_own_weight_and_width():
    x_TK, weights = _draw(9, 6), [_draw(6, width, seed=width) for width in WIDTHS]
    out_TN = project(x_TK, weights, ROUTING)
    assert out_TN.shape == (9, 4)
    for span, weight, width in zip(SPANS, weights, WIDTHS, strict=True):
        assert (out_TN[span.rows, :width] - x_TK[span.rows] @ weight).abs().max() < FORMULA * 10
        assert not out_TN[span.rows, width:].any()


def test_a_span_without_weight_gets_zeros():
    out_TN = project(_draw(9, 6), [_draw(6, 2), None, _draw(6, 2)], ROUTING)
    assert not out_TN[3:4].any()
    assert out_TN[4:].all()


def test_the_outer_product_takes_each_span_s_own_rows():
    y_TN, x_TK = _draw(9, 4), _draw(9, 6, seed=1)
    for span, product_NK in zip(SPANS, outer(y_TN, x_TK, ROUTING), strict=True):
        assert (product_NK - y_TN[span.rows].T @ x_TK[span.rows]).abs().max() < FORMULA * 10


def test_grouped_products_are_those_span_by_span(monkeypatch):
    x_TK, weights = _draw(9, 16).bfloat16(), [_draw(16, 8 * width, seed=width).bfloat16() for width in WIDTHS]
    weights[1] = None
    y_TN, routing = _draw(9, 8, seed=1).bfloat16(), Routing.of(SPANS, torch.device("cpu"))
    plain = project(x_TK, weights, routing), outer(y_TN, x_TK, routing)
    monkeypatch.setattr(lora_rows, "is_grouped", lambda x: True)
    grouped = project(x_TK, weights, routing), outer(y_TN, x_TK, routing)
    for ours, theirs in zip(grouped, plain, strict=True):
        assert (ours - theirs).abs().max() <= 2**-7 * theirs.abs().max()


def test_a_seeded_stream_follows_from_its_text():
    cpu = torch.device("cpu")
    first, again, other = (torch.rand(4, generator=seeded_generator(text, cpu)) for text in ("0/a", "0/a", "1/a"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
