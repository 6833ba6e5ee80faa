"""Samples as people read them."""

import re
from collections.abc import Sequence

from lora_rl.data.types import Sample
from lora_rl.tracking.markdown import cell, one_line

TEXT_LIMIT = 160
"""Characters of a cell."""

_SPECIAL_TOKEN = re.compile(r"<\|.*?\|>|</?s>|\[/?INST\]")
_ANSWER_HEADER = re.compile(r"(assistant|model)\b")
_ROLE_HEADER = re.compile(r"^(user|tool)\n")


def sample_table(samples: Sequence[Sample], *, limit: int) -> str:
    """Markdown table of the first sample of each of `limit` prompts. What a model writes is shown, never rendered."""
    firsts = {sample.prompt_id: sample for sample in reversed(samples)}
    chosen = list(reversed(firsts.values()))[:limit]
    rows = "\n".join(
        f"| {_tail(last_turn(sample))} | {_head(sample.response_text)} | {_head(sample.label or '')} "
        f"| {_reward(sample)} |"
        for sample in chosen
    )
    return f"| prompt | answer | reference | reward |\n| --- | --- | --- | ---: |\n{rows}"


def last_turn(sample: Sample) -> str:
    """What the answer answers, on one line: the prompt's last message without roles and special tokens."""
    parts = [part for text in _SPECIAL_TOKEN.split(sample.prompt_text) if (part := text.strip())]
    if len(parts) > 1 and _ANSWER_HEADER.match(parts[-1]):
        parts.pop()
    return one_line(_ROLE_HEADER.sub("", parts[-1])) if parts else ""


def _head(text: str) -> str:
    text = one_line(text)
    return cell(text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…")


def _tail(text: str) -> str:
    # The end of a prompt holds what is asked.
    return cell(text if len(text) <= TEXT_LIMIT else "…" + text[-TEXT_LIMIT:])


def _reward(sample: Sample) -> str:
    return "-" if sample.reward is None else f"{sample.reward:.2f}"
