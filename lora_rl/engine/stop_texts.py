"""Texts that end an answer.

vLLM looks for them outside its scheduler, so that the step at which a request leaves the batch depends on timing. Ours
are found inside (scheduler.py), and cut off here. A special token shows in no text: it ends an answer by its number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lora_rl.errors import EngineError

STOP_TEXTS = "lora_rl_stop_texts"
"""Key of the stop texts in `SamplingParams.extra_args`."""

MARGIN_TOKENS = 8
"""Tokens before the longest stop text that are decoded along: a character can span several."""


@dataclass(frozen=True, kw_only=True)
class Stops:
    """What ends an answer."""

    texts: list[str]
    tokens: list[int]
    """Special tokens."""


def stops_of(tokenizer: Any, stops: Sequence[str]) -> Stops:
    """`stops` as texts and special tokens. Raises EngineError for a special token with other text around it."""
    found = Stops(texts=[], tokens=[])
    for stop in stops:
        tokens = tokenizer.encode(stop, add_special_tokens=False)
        if not any(_hidden(tokenizer, token) for token in tokens):
            found.texts.append(stop)
        elif len(tokens) == 1:
            found.tokens.append(tokens[0])
        else:
            raise EngineError(
                f"sampling.stop: {stop!r} has a special token, which no answer's text shows, and other text; "
                "give the token alone, or the text alone"
            )
    return found


def _hidden(tokenizer: Any, token: int) -> bool:
    return tokenizer.decode([token]) != tokenizer.decode([token], skip_special_tokens=True)


def ends_with_stop(decode: Callable[[list[int]], str], tokens: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether the last of `tokens` completes one of `stops`. Tokens that show in the text are at least a byte long."""
    window = max(len(stop.encode()) for stop in stops) + MARGIN_TOKENS
    text = decode(list(tokens[-window:]))
    return any(stop in text for stop in stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`."""
    found = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(found)] if found else text
