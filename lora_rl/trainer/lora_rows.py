"""Matrix products of packed rows that belong to different adapters.

T packed rows, sorted by slot; K input and N output width of a product.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lora_rl.trainer.transfer import on_device

ROW_STEP = 16
"""Low-rank rows are as wide as a multiple of this. Grouped products want strides of 16 bytes; on a CPU a product's last
bits hang on whether its rows stand at multiples of 64 bytes, which must not depend on neighbours."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows `start` to `stop` of a packed batch belong to `slot`."""

    slot: int
    start: int
    stop: int
    dropout_seed: str | None = None
    """Fixes the dropout masks of these rows; null for no dropout."""

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Whose rows a packed batch has: spans that cover all rows, or none where every adapter is off."""

    spans: tuple[Span, ...] = ()
    ends: Tensor | None = None
    """Where each span stops, int32, on the device."""

    @classmethod
    def of(cls, spans: tuple[Span, ...], device: torch.device) -> "Routing":
        stops = torch.tensor([span.stop for span in spans], dtype=torch.int32)
        return cls(spans=spans, ends=on_device(stops, device))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Rows of each span."""
        return [span.stop - span.start for span in self.spans]


def project(x_TK: Tensor, weights: Sequence[Tensor | None], routing: Routing) -> Tensor:
    """Each span's rows times its own weight [K, N] of any width: [T, widest N], with zeros where a span has none."""
    present = [weight for weight in weights if weight is not None]
    if len(present) == len(weights) == 1:
        return x_TK @ present[0]
    width = max(weight.shape[1] for weight in present)
    if is_grouped(x_TK):
        nothing = present[0].new_zeros(x_TK.shape[1], width)
        stacked_SKN = torch.stack([nothing if weight is None else padded_last(weight, width) for weight in weights])
        return grouped_mm(x_TK, stacked_SKN, routing.ends)
    out_TN = x_TK.new_zeros(len(x_TK), width)
    for span, weight in zip(routing.spans, weights, strict=True):
        if weight is not None:
            out_TN[span.rows, : weight.shape[1]] = x_TK[span.rows] @ weight
    return out_TN


def outer(
    y_TN: Tensor,
    x_TK: Tensor,
    routing: Routing,
    *,
    y_widths: Sequence[int] | None = None,
    x_widths: Sequence[int] | None = None,
) -> Tensor:
    """The product of each span's rows of `y_TN` and `x_TK`: [spans, N, K].

    Widths say how many columns of a span's rows are its own; the others are zero.
    """
    if len(routing.spans) > 1 and is_grouped(x_TK):
        return grouped_mm(y_TN.T, x_TK, routing.ends)
    parts = zip(
        y_TN.split(routing.sizes),
        x_TK.split(routing.sizes),
        y_widths or [y_TN.shape[1]] * len(routing.spans),
        x_widths or [x_TK.shape[1]] * len(routing.spans),
        strict=True,
    )
    out_SNK = x_TK.new_zeros(len(routing.spans), y_TN.shape[1], x_TK.shape[1])
    for out_NK, (y_tN, x_tK, y_width, x_width) in zip(out_SNK, parts, strict=True):
        out_NK[:y_width, :x_width] = first_columns(y_tN, y_width).T @ first_columns(x_tK, x_width)
    return out_SNK


def first_columns(values: Tensor, width: int) -> Tensor:
    """A span's own columns, side by side as if there were no others: products then have the same bits as without."""
    return values if values.shape[1] == width else values[:, :width].contiguous()


def seeded_generator(text: str, device: torch.device) -> torch.Generator:
    """A generator whose stream is a function of `text`."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator(device).manual_seed(seed)


def padded_last(values: Tensor, width: int) -> Tensor:
    """`values` with zeros after its last dimension, up to `width`."""
    # padding by nothing would be a copy
    return values if values.shape[-1] == width else F.pad(values, (0, width - values.shape[-1]))


def is_grouped(x: Tensor) -> bool:
    """Whether rows `x` have a grouped kernel: on CUDA in bf16. Elsewhere a loop costs nothing beside the products."""
    return x.is_cuda and x.dtype == torch.bfloat16 and len(x) > 0


def grouped_mm(left: Tensor, right: Tensor, ends: Tensor | None) -> Tensor:
    """Products of the parts of `left`'s rows, or of its columns and `right`'s rows, that stop at `ends`."""
    product: Any = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
    return product(left, right, ends)
