"""Texts that end an answer.

vLLM looks for them outside its scheduler, so that the step at which a request leaves the batch depends on timing. Ours
are found inside (scheduler.py), and cut off here.
"""

from collections.abc import Callable, Sequence

STOP_TEXTS = "lora_rl_stop_texts"
"""Key of the stop texts in `SamplingParams.extra_args`."""

MARGIN_TOKENS = 8
"""Tokens before the longest stop text that are decoded along: a character can span several."""


def ends_with_stop(decode: Callable[[list[int]], str], tokens: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether the last of `tokens` completes one of `stops`. Tokens that show in the text are at least a byte long."""
    window = max(len(stop.encode()) for stop in stops) + MARGIN_TOKENS
    text = decode(list(tokens[-window:]))
    return any(stop in text for stop in stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`."""
    found = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(found)] if found else text
