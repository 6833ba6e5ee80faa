"""Samples to micro-batches of packed rows: each sample in exactly one, and always the same for the same samples.

T rows of a micro-batch, N response tokens in it. Samples of one prompt that meet in a micro-batch share the prompt's
rows: what is computed stays the same, but most of it only once where answers are short. A response's last token is only
a target: it has no row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lora_rl.data.types import Sample
from lora_rl.errors import DataError
from lora_rl.trainer.attention import Ask, Layout, make_layout
from lora_rl.trainer.lora_rows import Span


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One sample of a micro-batch."""

    slot: int
    sample: int
    """Its index in the slot's batch."""
    tokens: slice
    """Its response tokens among the N."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows sorted by slot; response tokens and pieces in the same order."""

    tokens_T: Tensor
    positions_T: Tensor
    """Place of each row in its sequence."""
    layout: Layout
    spans: tuple[Span, ...]
    """Rows of each slot."""
    rows_N: Tensor
    """Row that predicts each response token."""
    targets_N: Tensor
    """The response tokens."""
    pieces: tuple[Piece, ...]

    def tokens_of(self, slot: int) -> slice:
        """The slot's response tokens among the N."""
        own = [piece.tokens for piece in self.pieces if piece.slot == slot]
        return slice(own[0].start, own[-1].stop)


@dataclass
class _Rows:
    """A micro-batch in the making, as plain lists."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prompts: dict[tuple[int, tuple[int, ...]], range] = field(default_factory=dict)
    """Rows of each slot's prompts."""
    asks: list[Ask] = field(default_factory=list)
    predictors: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    def extra(self, slot: int, sample: Sample) -> int:
        """Rows that the sample would add."""
        shared = (slot, tuple(sample.prompt_tokens)) in self.prompts
        return len(sample.response_tokens) - 1 + (0 if shared else len(sample.prompt_tokens))

    def add(self, slot: int, index: int, sample: Sample) -> None:
        key = (slot, tuple(sample.prompt_tokens))
        if key not in self.prompts:
            rows = self._append(slot, sample.prompt_tokens, 0)
            self.prompts[key] = rows
            self.asks.append(Ask(queries=rows, keys=rows))
        prompt = self.prompts[key]
        response = self._append(slot, sample.response_tokens[:-1], len(prompt))
        start = len(self.targets)
        if response:
            self.asks.append(Ask(queries=response, keys=[*prompt, *response]))
        self.predictors += [prompt[-1], *response]
        self.targets += sample.response_tokens
        self.pieces.append(Piece(slot=slot, sample=index, tokens=slice(start, len(self.targets))))

    def _append(self, slot: int, tokens: list[int], position: int) -> range:
        first = len(self.tokens)
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.slots += [slot] * len(tokens)
        return range(first, len(self.tokens))

    def finish(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        num_rows = len(self.tokens)
        starts = [row for row in range(num_rows) if row == 0 or self.slots[row] != self.slots[row - 1]]
        return MicroBatch(
            tokens_T=torch.tensor(self.tokens, device=device),
            positions_T=torch.tensor(self.positions, device=device),
            layout=make_layout(self.asks, device, dtype),
            spans=tuple(
                Span(slot=self.slots[start], start=start, stop=stop)
                for start, stop in zip(starts, [*starts[1:], num_rows], strict=True)
            ),
            rows_N=torch.tensor(self.predictors, device=device),
            targets_N=torch.tensor(self.targets, device=device),
            pieces=tuple(self.pieces),
        )


def pack(
    samples: Mapping[int, Mapping[int, Sample]], *, max_tokens: int, device: torch.device, dtype: torch.dtype
) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` rows, filled in order of slot, prompt and sample.

    `samples` holds each slot's by their index. Raises DataError for a sample that is longer, and for one without prompt
    or response.
    """
    batches = [_Rows()]
    for slot in sorted(samples):
        for index, sample in _by_prompt(samples[slot]):
            _check(sample, max_tokens)
            if len(batches[-1].tokens) + batches[-1].extra(slot, sample) > max_tokens:
                batches.append(_Rows())
            batches[-1].add(slot, index, sample)
    return [rows.finish(device, dtype) for rows in batches if rows.pieces]


def _by_prompt(samples: Mapping[int, Sample]) -> list[tuple[int, Sample]]:
    """Samples with their index, those of one prompt together, prompts in order of appearance."""
    groups: dict[tuple[int, ...], list[tuple[int, Sample]]] = {}
    for index, sample in samples.items():
        groups.setdefault(tuple(sample.prompt_tokens), []).append((index, sample))
    return [entry for group in groups.values() for entry in group]


def _check(sample: Sample, max_tokens: int) -> None:
    if not sample.prompt_tokens or not sample.response_tokens:
        raise DataError(
            f"sample {sample.id}: {len(sample.prompt_tokens)} prompt and {len(sample.response_tokens)} response "
            "tokens, must be one or more of each; leave it out"
        )
    length = len(sample.prompt_tokens) + len(sample.response_tokens) - 1
    if length > max_tokens:
        raise DataError(
            f"sample {sample.id}: {length} tokens exceed trainer.max_tokens_per_gpu {max_tokens}; raise that limit"
        )
