"""Samples as people read them."""

import re
from collections.abc import Sequence

from lora_rl.data.types import Sample

TEXT_LIMIT = 160
"""Characters of a cell."""

_SPECIAL_TOKEN = re.compile(r"<\|.*?\|>|</?s>|\[/?INST\]")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|!#~&$])")


def sample_table(samples: Sequence[Sample], *, limit: int) -> str:
    """Markdown table of the first sample of each of `limit` prompts. What a model writes is shown, never rendered."""
    firsts = {sample.prompt_id: sample for sample in reversed(samples)}
    chosen = list(reversed(firsts.values()))[:limit]
    rows = "\n".join(
        f"| {_tail(question(sample))} | {_head(sample.response_text)} | {_head(sample.label or '')} "
        f"| {_reward(sample)} |"
        for sample in chosen
    )
    return f"| prompt | answer | reference | reward |\n| --- | --- | --- | ---: |\n{rows}"


def question(sample: Sample) -> str:
    """The prompt without the chat template's special tokens."""
    return _one_line(_SPECIAL_TOKEN.sub(" ", sample.prompt_text))


def _head(text: str) -> str:
    text = _one_line(text)
    return _escaped(text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…")


def _tail(text: str) -> str:
    # The end of a prompt holds what is asked.
    return _escaped(text if len(text) <= TEXT_LIMIT else "…" + text[-TEXT_LIMIT:])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)


def _reward(sample: Sample) -> str:
    return "-" if sample.reward is None else f"{sample.reward:.2f}"
