"""Low-rank products of packed rows that belong to different adapters.

T packed rows, sorted by slot; P projections fused in one layer; R the largest rank among the spans, r one span's own;
K input and N output width.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPED_RANK_STEP = 8
"""`torch._grouped_mm` wants strides that are multiples of 16 bytes."""


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


def project_down(x_TK: Tensor, spans: Sequence[Span], weights: Sequence[Tensor]) -> Tensor:
    """Each span's rows times its own A [P, r, K] for all its projections: [T, P, R], zeros beyond a span's own rank."""
    rank = max(weight.shape[1] for weight in weights)
    if not _grouped(x_TK, spans):
        outputs = [
            (x_TK[span.rows] @ weight_PrK.flatten(0, 1).T).unflatten(1, weight_PrK.shape[:2])
            for span, weight_PrK in zip(spans, weights, strict=True)
        ]
        return torch.cat([pad_last(output_tPr, rank) for output_tPr in outputs])
    rank = -(-rank // GROUPED_RANK_STEP) * GROUPED_RANK_STEP
    stacked_SNK = torch.stack([F.pad(weight, (0, 0, 0, rank - weight.shape[1])).flatten(0, 1) for weight in weights])
    return _grouped_mm(x_TK, stacked_SNK, spans).unflatten(1, (-1, rank))


def project_up(down_TR: Tensor, spans: Sequence[Span], weights: Sequence[Tensor]) -> Tensor:
    """Each span's rows times its own B [N, r] of one projection: [T, N]."""
    if not _grouped(down_TR, spans):
        return torch.cat(
            [
                down_TR[span.rows, : weight_Nr.shape[1]] @ weight_Nr.T
                for span, weight_Nr in zip(spans, weights, strict=True)
            ]
        )
    stacked_SNR = torch.stack([pad_last(weight, down_TR.shape[1]) for weight in weights])
    return _grouped_mm(down_TR, stacked_SNR, spans)


def pad_last(values: Tensor, size: int) -> Tensor:
    """`values` with zeros after its last dimension, up to `size`."""
    missing = size - values.shape[-1]
    return F.pad(values, (0, missing)) if missing else values


def seeded_generator(text: str, device: torch.device) -> torch.Generator:
    """A generator whose stream is a function of `text`."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator(device).manual_seed(seed)


def _grouped(x: Tensor, spans: Sequence[Span]) -> bool:
    # The grouped kernel exists for CUDA bf16; elsewhere a loop over spans costs nothing beside the products.
    return x.is_cuda and x.dtype == torch.bfloat16 and len(spans) > 1


def _grouped_mm(x_TK: Tensor, weights_SNK: Tensor, spans: Sequence[Span]) -> Tensor:
    ends = torch.tensor([span.stop for span in spans], dtype=torch.int32, device=x_TK.device)
    grouped_mm: Any = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
    return grouped_mm(x_TK.contiguous(), weights_SNK.transpose(-2, -1), ends)
