"""Causal attention over packed rows in which samples of one prompt share the prompt's rows.

T packed rows of a micro-batch, each computed once; F rows after every sequence got its prompt back; H heads, K key heads, E head size.
Linear layers see T rows; attention gathers F rows, runs an ordinary causal kernel, and keeps one row for each of the T.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lora_rl.trainer.megatron_compat import MegatronModule, PackedSeqParams, causal_varlen_attention

LENGTH_STEP = 32
"""Sequences are padded to a multiple of this: few shapes, and a row's result does not depend on its neighbours' lengths."""


@dataclass(frozen=True)
class BucketedLayout:
    """Sequences of similar length as padded batches: any device and dtype."""

    buckets: tuple[Tensor, ...]
    """Rows of T [B, L] of each bucket's sequences, padded on the right with row 0 (causality hides the padding)."""
    keep_T: Tensor
    """For each row of T, its place among the rows of all buckets."""

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], num_rows: int, device: torch.device) -> "BucketedLayout":
        """`sequences` lists the rows of each, in order of position; every row of T is in at least one."""
        by_length: dict[int, list[list[int]]] = {}
        for rows in sequences:
            length = -(-len(rows) // LENGTH_STEP) * LENGTH_STEP
            by_length.setdefault(length, []).append([*rows, *[-1] * (length - len(rows))])
        buckets = [by_length[length] for length in sorted(by_length)]
        keep_T = _first_place([row for bucket in buckets for rows in bucket for row in rows], num_rows)
        rows = tuple(torch.tensor(bucket).clamp(min=0).to(device) for bucket in buckets)
        return cls(rows, keep_T.to(device))

    def attend(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, scale: float) -> Tensor:
        """Attention output [T, H, E]."""
        outputs = []
        for rows_BL in self.buckets:
            query, key, value = (_gather(part, rows_BL).transpose(1, 2) for part in (query_THE, key_TKE, value_TKE))
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
            )
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.keep_T)


@dataclass(frozen=True)
class VarlenLayout:
    """Sequences end to end, for the variable-length flash kernel: CUDA in half precision."""

    rows_F: Tensor
    """Rows of T of all sequences, one after the other."""
    ends: Tensor
    """Cumulative lengths of the sequences from 0, int32."""
    longest: int
    keep_T: Tensor
    """For each row of T, its place in F."""

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], num_rows: int, device: torch.device) -> "VarlenLayout":
        """`sequences` lists the rows of each, in order of position; every row of T is in at least one."""
        lengths = torch.tensor([0, *(len(rows) for rows in sequences)])
        rows_F = [row for rows in sequences for row in rows]
        return cls(
            torch.tensor(rows_F, device=device),
            lengths.cumsum(0).to(device, torch.int32),
            int(lengths.max()),
            _first_place(rows_F, num_rows).to(device),
        )

    def attend(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, scale: float) -> Tensor:
        """Attention output [T, H, E]."""
        query, key, value = (part.index_select(0, self.rows_F) for part in (query_THE, key_TKE, value_TKE))
        attended = causal_varlen_attention(query, key, value, self.ends, self.longest, scale)
        return attended.index_select(0, self.keep_T)


Layout = BucketedLayout | VarlenLayout


def make_layout(sequences: Sequence[Sequence[int]], num_rows: int, device: torch.device, dtype: torch.dtype) -> Layout:
    """The layout for the fastest kernel that the device has for the dtype."""
    varlen = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    return (VarlenLayout if varlen else BucketedLayout).of(sequences, num_rows, device)


@dataclass
class PackedParams(PackedSeqParams):
    """Megatron's parameters of a packed batch, with our layout aboard: the one object that it hands through to attention."""

    layout: Layout | None = None

    @classmethod
    def of(cls, layout: Layout, num_rows: int, device: torch.device) -> "PackedParams":
        # One span over all rows: the rotary embedding then takes the frequencies we pass row by row.
        ends = torch.tensor([0, num_rows], dtype=torch.int32, device=device)
        return cls(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=num_rows,
            max_seqlen_kv=num_rows,
            layout=layout,
        )


class PackedAttention(MegatronModule):
    """Megatron's core attention, by the layout in `packed_seq_params`."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **unused):
        super().__init__(config=config)
        self.scale = softmax_scale or 1 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        attn_mask_type: object = None,
        attention_bias: None = None,
        packed_seq_params: PackedParams | None = None,
    ) -> Tensor:
        return packed_seq_params.layout.attend(query, key, value, self.scale).flatten(1)


def _gather(values_THE: Tensor, rows_BL: Tensor) -> Tensor:
    """Rows [B, L, H, E]."""
    return values_THE.index_select(0, rows_BL.flatten()).unflatten(0, rows_BL.shape)


def _first_place(rows_F: Sequence[int], num_rows: int) -> Tensor:
    """For each row number below `num_rows`, the first index of `rows_F` that holds it."""
    places: dict[int, int] = {}
    for place, row in enumerate(rows_F):
        places.setdefault(row, place)
    return torch.tensor([places[row] for row in range(num_rows)])
