"""Prompts in an order that a plain position can go on from."""

import random
from dataclasses import dataclass

from lora_rl.config.data import DataConfig, ReasoningGymData
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.rows import Row, Rows, open_rows
from lora_rl.data.types import Prompt
from lora_rl.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class PromptBatch:
    """Prompts drawn. The lists have the same length."""

    prompts: list[Prompt]
    positions: list[int]
    """Where a draw goes on after each prompt: rows consumed since the start of the run, those left out included."""


class PromptSource:
    """Rows in epochs without end. Each epoch is every row once, in an order that follows from seed and epoch alone."""

    def __init__(
        self, rows: Rows, renderer: ChatRenderer, *, seed: int, shuffle: bool, system_prompt: str | None
    ) -> None:
        self._rows, self._renderer = rows, renderer
        self._seed, self._shuffle, self._system_prompt = seed, shuffle, system_prompt
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self._rows)

    def take(self, position: int, count: int, *, max_prompt_tokens: int) -> PromptBatch:
        """The next `count` prompts from `position` on that have at most `max_prompt_tokens` tokens.

        The same arguments give the same prompts. Raises DataError for a row that cannot be used, and where a whole
        epoch holds no prompt that is short enough.
        """
        prompts: list[Prompt] = []
        positions: list[int] = []
        too_long: list[int] = []
        while len(prompts) < count:
            epoch, place = divmod(position, len(self))
            prompt = self._prompt(epoch, self._row_number(epoch, place))
            position += 1
            if len(prompt.tokens) <= max_prompt_tokens:
                prompts.append(prompt)
                positions.append(position)
                too_long.clear()
                continue
            too_long.append(len(prompt.tokens))
            if len(too_long) == len(self):
                raise DataError(
                    f"sampling.max_prompt_tokens: {max_prompt_tokens} leaves out all {len(self)} prompts, "
                    f"the shortest has {min(too_long)} tokens; raise it"
                )
        return PromptBatch(prompts=prompts, positions=positions)

    def _row_number(self, epoch: int, place: int) -> int:
        if not self._shuffle:
            return place
        # A cancelled caller's thread may still be drawing: it must not change the order between a check and its use.
        order = self._order
        if order[0] != epoch:
            numbers = list(range(len(self)))
            random.Random(f"{self._seed}/{epoch}").shuffle(numbers)
            self._order = order = (epoch, numbers)
        return order[1][place]

    def _prompt(self, epoch: int, number: int) -> Prompt:
        row: Row = self._rows[number]
        try:
            rendered = self._renderer.render(row.input, self._system_prompt)
        except DataError as error:
            raise DataError(f"data, row {number}: {error}") from error
        return Prompt(
            id=f"{epoch}/{number}",
            text=rendered.text,
            tokens=rendered.tokens,
            label=row.label,
            metadata=row.metadata,
        )


def open_source(config: DataConfig, renderer: ChatRenderer, *, seed: int) -> PromptSource:
    """The prompts of `config` in the order that `seed` decides. Raises as `open_rows` does."""
    return PromptSource(
        open_rows(config, seed=seed),
        renderer,
        seed=seed,
        # Procedural tasks come in random order as they are; a list of all their numbers would only cost memory.
        shuffle=False if isinstance(config, ReasoningGymData) else config.shuffle,
        system_prompt=config.system_prompt,
    )


def check_data(config: DataConfig, *, seed: int) -> tuple[DataConfig, list[str]]:
    """The data section with its rows' digest, and every fault of it that can be found without a model, as
    `field: value, rule; mend`."""
    try:
        rows = open_rows(config, seed=seed)
        rows[0]
    except (ConfigError, DataError) as error:
        return config, str(error).splitlines()
    return config.model_copy(update={"digest": rows.digest}), []
