"""Triton kernels for packed rows that belong to different adapters. Triton comes with torch where that has CUDA.

A row is read and written once whatever the number of spans; a product for each span takes as long to start as to run.
A row's sums are the same bits whatever rows stand beside it.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lora_rl.trainer.lora_rows import KERNEL_HEIGHT, TILE_ROWS

NUM_WARPS = 4
EXPAND_COLUMNS = 128
PROJECT_STEP = 128
"""Columns of the input that are loaded at a time."""
STAGES = 3
"""Steps of a product under way at a time: the kernels wait for memory, not for products."""
OUTER_ROWS = 64
"""Loaded at a time, `OUTER_STAGES` times under way."""
OUTER_COLUMNS = 128
OUTER_STAGES = 4


def add_expanded_(out_TK: Tensor, down_TQ: Tensor, weights_SQK: Tensor, tiles_X3: Tensor) -> None:
    """Adds to each row of `out_TK` its row of `down_TQ` times the weight of its span, rounded once.

    `tiles_X3` is that of `Routing`. The last dimension of `out_TK` is contiguous.
    """
    inner = low_width(down_TQ.shape[1])
    _launch(out_TK, down_TQ, weights_SQK, tiles_X3, columns=EXPAND_COLUMNS, inner=inner, add=True)


def project(x_TK: Tensor, weights_SQK: Tensor, tiles_X3: Tensor) -> Tensor:
    """Each row of `x_TK` times the weight of its span, transposed: [T, Q].

    `tiles_X3` is that of `Routing`, and covers all rows.
    """
    out_TQ = x_TK.new_empty(len(x_TK), weights_SQK.shape[1])
    columns = low_width(weights_SQK.shape[1])
    _launch(out_TQ, x_TK, weights_SQK.mT, tiles_X3, columns=columns, inner=PROJECT_STEP, add=False)
    return out_TQ


def _launch(
    out_TN: Tensor, x_TI: Tensor, weights_SIN: Tensor, tiles_X3: Tensor, *, columns: int, inner: int, add: bool
) -> None:
    kernel: Any = _times_weight[(triton.cdiv(out_TN.shape[1], columns), len(tiles_X3))]
    kernel(
        out_TN,
        x_TI,
        weights_SIN,
        tiles_X3,
        x_TI.shape[1],
        out_TN.shape[1],
        out_TN.stride(0),
        *x_TI.stride(),
        *weights_SIN.stride(),
        ROWS=TILE_ROWS,
        COLUMNS=columns,
        INNER=inner,
        ADD=add,
        num_warps=NUM_WARPS,
        num_stages=STAGES,
    )


def write_outer(out_SQK: Tensor, y_TQ: Tensor, x_TK: Tensor, bounds_S2: Tensor) -> None:
    """Puts into `out_SQK`, in float32, the product of each span's rows of `y_TQ`, transposed, and `x_TK`.

    `bounds_S2` is of `Routing`; a span without rows gets zeros. The last dimension of `y_TQ` is contiguous. A program
    takes all rows of a span, so that its sum has one order; where spans are few, columns still make programs enough to
    keep the memory busy.
    """
    num_spans, num_low, num_columns = out_SQK.shape
    low = low_width(num_low)
    kernel: Any = _outer[(triton.cdiv(num_low, low), triton.cdiv(num_columns, OUTER_COLUMNS), num_spans)]
    kernel(
        out_SQK,
        y_TQ,
        x_TK,
        bounds_S2,
        num_low,
        num_columns,
        *out_SQK.stride(),
        y_TQ.stride(0),
        *x_TK.stride(),
        ROWS=OUTER_ROWS,
        COLUMNS=OUTER_COLUMNS,
        LOW=low,
        num_warps=NUM_WARPS,
        num_stages=OUTER_STAGES,
    )


def low_width(height: int) -> int:
    """How much of a weight's height a program takes at a time; a product's least is 16."""
    return min(KERNEL_HEIGHT, max(16, triton.next_power_of_2(height)))


@triton.jit
def _times_weight(
    out,
    x,
    weights,
    tiles_X3,
    num_inner,
    num_columns,
    out_stride,
    x_stride,
    x_step,
    weights_stride,
    weight_inner,
    weight_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    ADD: tl.constexpr,
):
    """A tile of rows of `x` times columns of their span's weight, put into `out` or added to it."""
    tile = tiles_X3 + 3 * tl.program_id(1)
    span, start, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    rows = start + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None]
    weight = weights + span.to(tl.int64) * weights_stride + columns * weight_column
    x_rows = x + rows.to(tl.int64) * x_stride
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, num_inner, INNER):
        inner = first + tl.arange(0, INNER)
        x_mask = (rows < stop) & (inner < num_inner)[None]
        weight_mask = (inner < num_inner)[:, None] & (columns < num_columns)
        left = tl.load(x_rows + inner[None] * x_step, mask=x_mask, other=0.0)
        right = tl.load(weight + inner[:, None] * weight_inner, mask=weight_mask, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    mask = (rows < stop) & (columns < num_columns)
    place = out + rows.to(tl.int64) * out_stride + columns
    if ADD:
        total += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _outer(
    out_SQK,
    y_TQ,
    x_TK,
    bounds_S2,
    num_low,
    num_columns,
    out_stride,
    out_row,
    out_step,
    y_stride,
    x_stride,
    x_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOW: tl.constexpr,
):
    span = tl.program_id(2)
    start, stop = tl.load(bounds_S2 + 2 * span), tl.load(bounds_S2 + 2 * span + 1)
    low = tl.program_id(0) * LOW + tl.arange(0, LOW)[None]
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Stands transposed: the tensor cores take 64 columns at a time, and ranks are lower.
    total = tl.zeros((COLUMNS, LOW), dtype=tl.float32)
    for first in range(start, stop, ROWS):
        rows = first + tl.arange(0, ROWS)[:, None]
        y_mask = (rows < stop) & (low < num_low)
        x_mask = (rows < stop) & (columns < num_columns)[None]
        y = tl.load(y_TQ + rows.to(tl.int64) * y_stride + low, mask=y_mask, other=0.0)
        x = tl.load(x_TK + rows.to(tl.int64) * x_stride + columns[None] * x_step, mask=x_mask, other=0.0)
        total = tl.dot(x.T, y, total, input_precision="ieee")
    mask = (low < num_low) & (columns < num_columns)[:, None]
    place = out_SQK + span.to(tl.int64) * out_stride + low * out_row + columns[:, None] * out_step
    tl.store(place, total, mask=mask)
