"""Causal attention over packed rows in which samples of one prompt share the prompt's rows.

Linear layers see each of the T packed rows once. Attention works on asks: a prompt's rows ask their own keys, a
response's rows ask the prompt's keys and their own. The asks' queries, end to end, are the packed rows in order; keys
are gathered as often as needed.
H heads, G key heads, E head size; B asks of a bucket, Q and K its padded numbers of queries and keys.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lora_rl.trainer.flash import causal_varlen_attention
from lora_rl.trainer.megatron_compat import PackedSeqParams, SelfAttention
from lora_rl.trainer.pointwise import norm_and_rotate
from lora_rl.trainer.transfer import on_device

QUERY_STEP, KEY_STEP = 16, 32
"""Asks are padded to multiples of these: few shapes, and a row's result does not hang on its neighbours' lengths."""

PLAIN_MAX_KEYS = 256
"""Up to here plain products beat torch's fused kernel on a CPU sixfold; beyond, memory counts."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Rows that query and rows that are keys, in order of position; the last query stands at the last key."""

    queries: Sequence[int]
    keys: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    """Asks of similar size, padded on the right with row 0."""

    queries_BQ: Tensor
    keys_BK: Tensor
    visible_BQK: Tensor
    """Which keys a query sees."""

    @classmethod
    def of(cls, asks: Sequence[Ask], num_queries: int, num_keys: int) -> "_Bucket":
        # A query sees the keys up to its own place, so padded keys are seen by padded queries alone.
        before_B = torch.tensor([len(ask.keys) - len(ask.queries) for ask in asks])
        last_BQ = before_B[:, None] + torch.arange(num_queries)
        return cls(
            queries_BQ=torch.tensor([_padded(ask.queries, num_queries) for ask in asks]),
            keys_BK=torch.tensor([_padded(ask.keys, num_keys) for ask in asks]),
            visible_BQK=torch.arange(num_keys) <= last_BQ[:, :, None],
        )

    def to(self, device: torch.device) -> "_Bucket":
        tensors = {name: tensor.to(device) for name, tensor in vars(self).items()}
        return _Bucket(**tensors)

    def attend(self, query_THE: Tensor, key_TGE: Tensor, value_TGE: Tensor, scale: float) -> Tensor:
        """Outputs [B Q, H, E]."""
        num_groups, per_group = key_TGE.shape[1], query_THE.shape[1] // key_TGE.shape[1]
        key, value = (_gather(part, self.keys_BK).transpose(1, 2) for part in (key_TGE, value_TGE))
        # The heads of a group become more queries of its key head: nothing is repeated.
        query = _gather(query_THE, self.queries_BQ).unflatten(2, (num_groups, per_group))
        query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
        visible = self.visible_BQK[:, None].repeat(1, 1, per_group, 1)
        if query.is_cpu and key.shape[2] <= PLAIN_MAX_KEYS:
            scores = (query @ key.mT * scale).masked_fill(~visible, -torch.inf)
            attended = scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value
        else:
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
        return attended.unflatten(2, (per_group, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class BucketedLayout:
    """Padded batches of asks: any device and dtype."""

    buckets: tuple[_Bucket, ...]
    place_T: Tensor
    """For each row, its place among the padded queries of all buckets."""
    longest: int
    """Rows of the longest sequence."""

    @classmethod
    def of(cls, asks: Sequence[Ask], device: torch.device) -> "BucketedLayout":
        by_size: dict[tuple[int, int], list[Ask]] = {}
        for ask in asks:
            size = (_rounded(len(ask.queries), QUERY_STEP), _rounded(len(ask.keys), KEY_STEP))
            by_size.setdefault(size, []).append(ask)
        place: dict[int, int] = {}
        first = 0
        for (num_queries, _), members in sorted(by_size.items()):
            for ask in members:
                place |= {row: first + i for i, row in enumerate(ask.queries)}
                first += num_queries
        return cls(
            buckets=tuple(_Bucket.of(members, *size).to(device) for size, members in sorted(by_size.items())),
            place_T=torch.tensor([place[row] for row in range(len(place))], device=device),
            longest=max(len(ask.keys) for ask in asks),
        )

    def attend(self, query_THE: Tensor, key_TGE: Tensor, value_TGE: Tensor, scale: float) -> Tensor:
        """Attention output [T, H, E]."""
        attended = torch.cat([bucket.attend(query_THE, key_TGE, value_TGE, scale) for bucket in self.buckets])
        return attended.index_select(0, self.place_T)


@dataclass(frozen=True, kw_only=True)
class VarlenLayout:
    """Asks end to end, for the variable-length flash kernel: CUDA in half precision."""

    keys_F: Tensor | None
    """Rows that are keys; null where they are all rows in order, as without shared prompts."""
    query_ends: Tensor
    """Cumulative numbers of queries from 0, int32; `key_ends` likewise."""
    key_ends: Tensor
    most_queries: int
    most_keys: int

    @classmethod
    def of(cls, asks: Sequence[Ask], device: torch.device) -> "VarlenLayout":
        num_queries, num_keys = [len(ask.queries) for ask in asks], [len(ask.keys) for ask in asks]
        keys = [row for ask in asks for row in ask.keys]
        in_order = keys == list(range(len(keys)))
        return cls(
            keys_F=None if in_order else on_device(keys, device),
            query_ends=on_device(torch.tensor([0, *accumulate(num_queries)], dtype=torch.int32), device),
            key_ends=on_device(torch.tensor([0, *accumulate(num_keys)], dtype=torch.int32), device),
            most_queries=max(num_queries),
            most_keys=max(num_keys),
        )

    @property
    def longest(self) -> int:
        """Rows of the longest sequence."""
        return self.most_keys

    def attend(self, query_THE: Tensor, key_TGE: Tensor, value_TGE: Tensor, scale: float) -> Tensor:
        """Attention output [T, H, E]."""
        if self.keys_F is not None:
            key_TGE, value_TGE = (part.index_select(0, self.keys_F) for part in (key_TGE, value_TGE))
        return causal_varlen_attention(
            query_THE,
            key_TGE,
            value_TGE,
            ends=(self.query_ends, self.key_ends),
            most=(self.most_queries, self.most_keys),
            scale=scale,
        )


Layout = BucketedLayout | VarlenLayout


def make_layout(asks: Sequence[Ask], device: torch.device, dtype: torch.dtype) -> Layout:
    """The layout for the fastest kernel that the device has for the dtype."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        return VarlenLayout.of(asks, device)
    return BucketedLayout.of(asks, device)


@dataclass
class PackedParams(PackedSeqParams):
    """Megatron's parameters of a packed batch, with ours: the one object that it hands through to attention."""

    layout: Layout | None = None
    cos_TE: Tensor | None = None
    sin_TE: Tensor | None = None
    """Rotary embedding of each row's position."""


class PackedSelfAttention(SelfAttention):
    """Megatron's weights of self-attention over packed rows. Rows of the fused weight stand as [q | k | v].

    Megatron stores them by key head; three plain blocks cost no copy, here and in LoRA.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        head = self.hidden_size_per_attention_head
        self.widths = [
            count * head
            for count in (
                self.num_attention_heads_per_partition,
                self.num_query_groups_per_partition,
                self.num_query_groups_per_partition,
            )
        ]

    def sort_rows(self) -> None:
        """Bring loaded weights into the order that `forward` expects. To be called once."""
        by_group = [width // self.num_query_groups_per_partition for width in self.widths]
        for parameter in self.linear_qkv.parameters():
            groups = parameter.data.unflatten(0, (self.num_query_groups_per_partition, -1)).split(by_group, 1)
            parameter.data = torch.cat([part.flatten(0, 1) for part in groups])

    def forward(
        self, hidden_states: Tensor, attention_mask: None, *, packed_seq_params: PackedParams, **unused: Any
    ) -> tuple[Tensor, Tensor | None]:
        params: Any = packed_seq_params
        fused, _ = self.linear_qkv(hidden_states)
        head = self.hidden_size_per_attention_head
        query, key, value = (part.unflatten(1, (-1, head)) for part in fused[:, 0].split(self.widths, 1))
        query, key = (
            norm_and_rotate(
                part, getattr(norm, "weight", None), self.config.layernorm_epsilon, params.cos_TE, params.sin_TE
            )
            for part, norm in ((query, self.q_layernorm), (key, self.k_layernorm))
        )
        attended_THE = params.layout.attend(query, key, value, 1 / math.sqrt(head))
        return self.linear_proj(attended_THE.flatten(1)[:, None])


def _gather(values_THE: Tensor, rows_BL: Tensor) -> Tensor:
    """Rows [B, L, H, E]."""
    return values_THE.index_select(0, rows_BL.flatten()).unflatten(0, rows_BL.shape)


def _padded(rows: Sequence[int], size: int) -> list[int]:
    return [*rows, *[0] * (size - len(rows))]


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
