import pytest
import torch

from lora_rl.trainer.lora_rows import (
    OuterBlock,
    Routing,
    Span,
    SpanWeights,
    add_expanded_,
    outer,
    outer_blocks,
    project,
    seeded_generator,
)
from tests.tolerances import FORMULA

SPANS = (Span(slot=0, start=0, stop=3), Span(slot=2, start=3, stop=4), Span(slot=5, start=4, stop=9))
ROUTING = Routing.of(SPANS, torch.device("cpu"))
HEIGHTS = (2, 4, 3)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _weights(width: int, heights: tuple[int | None, ...] = HEIGHTS) -> SpanWeights:
    return SpanWeights(of_span=[height and _draw(height, width, seed=height) for height in heights])


def test_each_span_is_projected_by_its_own_weight_and_height():
    x_TK, weights = _draw(9, 6), _weights(6)
    out_TQ = project(x_TK, weights, ROUTING)
    assert out_TQ.shape == (9, 4)
    for span, weight_QK, height in zip(SPANS, weights.of_span, HEIGHTS, strict=True):
        assert (out_TQ[span.rows, :height] - x_TK[span.rows] @ weight_QK.T).abs().max() < FORMULA * 10
        assert not out_TQ[span.rows, height:].any()


def test_a_span_without_weight_is_projected_to_zeros_and_expanded_by_nothing():
    weights = _weights(6, (2, None, 2))
    out_TQ = project(_draw(9, 6), weights, ROUTING)
    assert not out_TQ[3:4].any()
    assert out_TQ[4:].all()
    before_TK = _draw(9, 6)
    after_TK = before_TK.clone()
    add_expanded_(after_TK, _draw(9, 2), weights, ROUTING)
    assert ((after_TK != before_TK).all(1).nonzero().flatten() == torch.tensor([0, 1, 2, 4, 5, 6, 7, 8])).all()


def test_each_span_is_expanded_by_its_own_weight_and_added():
    down_TQ, before_TK, weights = _draw(9, 4), _draw(9, 6, seed=1), _weights(6)
    after_TK = before_TK.clone()
    add_expanded_(after_TK, down_TQ, weights, ROUTING)
    for span, weight_QK, height in zip(SPANS, weights.of_span, HEIGHTS, strict=True):
        added_tK = down_TQ[span.rows, :height] @ weight_QK
        assert (after_TK[span.rows] - before_TK[span.rows] - added_tK).abs().max() < FORMULA * 10


def test_the_outer_product_takes_each_span_s_own_rows_and_height():
    y_TQ, x_TK = _draw(9, 4), _draw(9, 6, seed=1)
    for span, product_QK, height in zip(SPANS, outer(y_TQ, x_TK, ROUTING, HEIGHTS), HEIGHTS, strict=True):
        assert (product_QK[:height] - y_TQ[span.rows, :height].T @ x_TK[span.rows]).abs().max() < FORMULA * 10
        assert not product_QK[height:].any()


def test_blocks_of_the_outer_product_stand_transposed():
    y_TQ, x_TK = _draw(9, 4), _draw(9, 6, seed=1)
    whole_SQK = outer(y_TQ, x_TK, ROUTING, HEIGHTS)
    blocks = [
        OuterBlock(rows=slice(0, 2), columns=slice(0, 5), wanted=(True, True, True)),
        OuterBlock(rows=slice(1, 4), columns=slice(5, 6), wanted=(True, True, True)),
    ]
    first, second = outer_blocks(y_TQ, x_TK, ROUTING, HEIGHTS, blocks)
    assert torch.equal(first, whole_SQK[:, 0:2, 0:5].mT)
    assert torch.equal(second, whole_SQK[:, 1:4, 5:6].mT)
    assert first.is_contiguous()


def test_outer_products_are_in_float32_whatever_the_rows_are():
    y_TQ, x_TK = _draw(9, 4).bfloat16(), _draw(9, 6, seed=1).bfloat16()
    assert outer(y_TQ, x_TK, ROUTING, HEIGHTS).dtype == torch.float32


@pytest.mark.parametrize("heights", [(3,), (2, 2, 2), (2, None, 4)])
def test_weights_are_stacked_with_zeros_where_a_span_has_nothing(heights):
    weights = _weights(6, heights)
    assert weights.stacked_SQK.shape == (len(heights), max(filter(None, heights)), 6)
    for stacked_QK, weight_QK, height in zip(weights.stacked_SQK, weights.of_span, weights.heights, strict=True):
        assert not stacked_QK[height:].any()
        assert weight_QK is None or torch.equal(stacked_QK[:height], weight_QK)


def test_tiles_cover_the_rows_of_each_span_once():
    spans = (Span(slot=3, start=0, stop=130), Span(slot=4, start=130, stop=131))
    tiles = Routing.of(spans, torch.device("cpu")).tiles_X3.tolist()
    assert tiles == [[0, 0, 64], [0, 64, 128], [0, 128, 130], [1, 130, 131]]


def test_bounds_are_empty_for_spans_that_were_not_chosen():
    assert ROUTING.bounds((True, False, True)).tolist() == [[0, 3], [3, 3], [4, 9]]
    assert ROUTING.bounds((True, True, True)).tolist() == [[0, 3], [3, 4], [4, 9]]


def test_a_seeded_stream_follows_from_its_text():
    cpu = torch.device("cpu")
    first, again, other = (torch.rand(4, generator=seeded_generator(text, cpu)) for text in ("0/a", "0/a", "1/a"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
