"""Samples to micro-batches of packed rows: each sample in exactly one, and always the same for the same samples.

T rows of a micro-batch, N response tokens in it. Samples of one prompt that meet in a micro-batch share the prompt's
rows: what is computed stays the same, but most of it only once where answers are short. Which meet is said in `plan`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lora_rl.data.types import Sample
from lora_rl.trainer.attention import Ask, Layout, make_layout
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.plan import Batch, Entry, plan, share_out
from lora_rl.trainer.transfer import on_device


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One sample of a micro-batch."""

    slot: int
    sample: int
    """Its index in the slot's batch."""
    tokens: slice
    """Its response tokens among the N."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a model computes on."""

    tokens_T: Tensor
    positions_T: Tensor
    """Place of each row in its sequence."""
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Rows):
    """Rows sorted by slot; response tokens and pieces in the same order."""

    number: int
    """Among those of all copies of the model."""
    spans: tuple[Span, ...]
    """Rows of each slot."""
    rows_N: Tensor
    """Row that predicts each response token."""
    targets_N: Tensor
    """The response tokens."""
    pieces: tuple[Piece, ...]
    """None in an idle one, whose one row and target keep step with other copies of the model."""

    def tokens_of(self, slot: int) -> slice:
        """The slot's response tokens among the N."""
        own = [piece.tokens for piece in self.pieces if piece.slot == slot]
        return slice(own[0].start, own[-1].stop)


@dataclass
class _Draft:
    """A micro-batch in the making, as plain lists."""

    number: int
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    stops: dict[int, int] = field(default_factory=dict)
    """Where each slot's rows stop."""
    prompts: dict[int, range] = field(default_factory=dict)
    """Rows of each prompt, by its number in the plan."""
    responses: dict[range, list[range]] = field(default_factory=dict)
    """Rows of each prompt's responses, by those of the prompt."""
    predictors: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        sample = entry.sample
        if entry.prompt not in self.prompts:
            rows = self._append(entry.slot, sample.prompt_tokens, 0)
            self.prompts[entry.prompt] = rows
            self.responses[rows] = []
        prompt = self.prompts[entry.prompt]
        response = self._append(entry.slot, sample.response_tokens[:-1], len(prompt))
        start = len(self.targets)
        if response:
            self.responses[prompt].append(response)
        self.predictors += [prompt[-1], *response]
        self.targets += sample.response_tokens
        self.pieces.append(Piece(slot=entry.slot, sample=entry.index, tokens=slice(start, len(self.targets))))

    def idle(self, slot: int) -> None:
        """One row that belongs to no sample, but passes through the slot's layers as any other."""
        self.responses[self._append(slot, [0], 0)] = []
        self.predictors, self.targets = [0], [0]

    def asks(self) -> Iterator[Ask]:
        """Prompt and response are one sequence where the prompt is not shared: nothing to gather."""
        for prompt, responses in self.responses.items():
            if len(responses) == 1 and responses[0].start == prompt.stop:
                whole = range(prompt.start, responses[0].stop)
                yield Ask(queries=whole, keys=whole)
                continue
            yield Ask(queries=prompt, keys=prompt)
            for response in responses:
                yield Ask(queries=response, keys=[*prompt, *response])

    def _append(self, slot: int, tokens: list[int], position: int) -> range:
        first = len(self.tokens)
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.stops[slot] = len(self.tokens)
        return range(first, len(self.tokens))

    def finish(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        return MicroBatch(
            number=self.number,
            tokens_T=on_device(self.tokens, device),
            positions_T=on_device(self.positions, device),
            layout=make_layout(list(self.asks()), device, dtype),
            spans=tuple(
                Span(slot=slot, start=start, stop=stop)
                for (slot, stop), start in zip(self.stops.items(), [0, *self.stops.values()], strict=False)
            ),
            rows_N=on_device(self.predictors, device),
            targets_N=on_device(self.targets, device),
            pieces=tuple(self.pieces),
        )


def pack(
    samples: Mapping[int, Mapping[int, Sample]],
    *,
    max_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    copy: int = 0,
    num_copies: int = 1,
) -> list[MicroBatch]:
    """The micro-batches of one of `num_copies` copies of the model, each of at most `max_tokens` rows.

    `samples` holds each slot's by their index. Every copy has equally many, in some of which there may be one idle row.
    Raises DataError for a sample that is longer, and for one without prompt or response.
    """
    batches = plan(samples, max_tokens=max_tokens, num_copies=num_copies)
    own = share_out(batches, num_copies)[copy]
    return [_packed(batches[number], number, batches[0][0].slot).finish(device, dtype) for number in own]


def _packed(batch: Batch, number: int, idle_slot: int) -> _Draft:
    rows = _Draft(number)
    for entry in batch:
        rows.add(entry)
    if not batch:
        rows.idle(idle_slot)
    return rows
