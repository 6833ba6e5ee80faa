"""Which samples meet in a micro-batch, and which copy of the model runs it: the same on every rank. Free of torch.

Copies run their micro-batches in lock step, so all have equally many. Samples of one prompt that meet in a micro-batch
share the prompt's rows; a response's last token is only a target and has no row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lora_rl.data.types import Sample
from lora_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A sample to pack."""

    slot: int
    index: int
    """In the slot's batch."""
    sample: Sample
    prompt: int
    """Equal for samples that share a prompt's rows."""

    @property
    def rows(self) -> int:
        """Where no other sample has brought the prompt."""
        return len(self.sample.prompt_tokens) + self.own_rows

    @property
    def own_rows(self) -> int:
        return len(self.sample.response_tokens) - 1


Batch = list[Entry]


def plan(samples: Mapping[int, Mapping[int, Sample]], *, max_tokens: int, num_copies: int = 1) -> list[Batch]:
    """Micro-batches of at most `max_tokens` rows, filled in order of slot, prompt and sample.

    Their number is a multiple of `num_copies`: they are cut as evenly as that takes, and where there are too few
    samples the last ones are empty. Raises DataError for a sample that is longer, or lacks prompt or response.
    """
    entries = _entries(samples)
    for entry in entries:
        _check(entry.sample, max_tokens)
    batches = _filled(entries, max_tokens)
    wanted = -(-len(batches) // num_copies) * num_copies
    if num_copies > 1 and batches:
        batches = _filled(entries, _smallest_budget(entries, wanted, max_tokens))
    while len(batches) < wanted and max(map(len, batches)) > 1:
        _halve_largest(batches)
    return batches + [[] for _ in range(wanted - len(batches))]


def share_out(batches: Sequence[Batch], num_copies: int) -> list[list[int]]:
    """Numbers of the batches that each copy runs, equally many: those of similar size in the same round.

    In each round the copy with the fewest rows so far takes the largest.
    """
    if num_copies == 1:
        return [list(range(len(batches)))]
    sizes = [num_rows(batch) for batch in batches]
    largest_first = sorted(range(len(batches)), key=lambda number: -sizes[number])
    shares: list[list[int]] = [[] for _ in range(num_copies)]
    for start in range(0, len(batches), num_copies):
        least_loaded_first = sorted(shares, key=lambda share: sum(sizes[number] for number in share))
        for number, share in zip(largest_first[start : start + num_copies], least_loaded_first, strict=True):
            share.append(number)
    return shares


def num_rows(batch: Batch) -> int:
    """Rows of a micro-batch."""
    prompts = {entry.prompt: entry.sample.prompt_tokens for entry in batch}
    return sum(map(len, prompts.values())) + sum(entry.own_rows for entry in batch)


def _entries(samples: Mapping[int, Mapping[int, Sample]]) -> list[Entry]:
    """In order of slot, and within one those of one prompt together, prompts in order of appearance."""
    groups: dict[tuple[int, tuple[int, ...]], list[tuple[int, Sample]]] = {}
    for slot in sorted(samples):
        for index, sample in samples[slot].items():
            groups.setdefault((slot, tuple(sample.prompt_tokens)), []).append((index, sample))
    return [
        Entry(slot=slot, index=index, sample=sample, prompt=prompt)
        for prompt, ((slot, _), group) in enumerate(groups.items())
        for index, sample in group
    ]


def _filled(entries: Sequence[Entry], budget: int) -> list[Batch]:
    batches: list[Batch] = []
    rows = 0
    for entry in entries:
        # Those of one prompt stand together: only the last one can have brought it.
        shared = bool(batches) and batches[-1][-1].prompt == entry.prompt
        extra = entry.own_rows if shared else entry.rows
        if not batches or rows + extra > budget:
            batches.append([])
            rows, extra = 0, entry.rows
        batches[-1].append(entry)
        rows += extra
    return batches


def _smallest_budget(entries: Sequence[Entry], num_batches: int, max_tokens: int) -> int:
    """Of those that give at most `num_batches`: the largest batch is then as small as can be."""
    low, high = max(entry.rows for entry in entries), max_tokens
    while low < high:
        middle = (low + high) // 2
        if len(_filled(entries, middle)) <= num_batches:
            high = middle
        else:
            low = middle + 1
    return low


def _halve_largest(batches: list[Batch]) -> None:
    """Cut the largest batch that has more than one sample in two."""
    number = max((n for n, batch in enumerate(batches) if len(batch) > 1), key=lambda n: num_rows(batches[n]))
    batch = batches[number]
    half = num_rows(batch) / 2
    cut = next(cut for cut in range(1, len(batch)) if num_rows(batch[: cut + 1]) > half)
    batches[number : number + 1] = [batch[:cut], batch[cut:]]


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
