"""Samples as people read them."""

from collections.abc import Sequence

from lora_rl.data.types import Sample

TEXT_LIMIT = 160


def sample_table(samples: Sequence[Sample], *, limit: int) -> str:
    """Markdown table of the first sample of each of `limit` prompts."""
    firsts = {sample.prompt_id: sample for sample in reversed(samples)}
    chosen = list(reversed(firsts.values()))[:limit]
    rows = "\n".join(
        f"| {_cell(question(sample))} | {_cell(sample.response_text)} "
        f"| {_cell(sample.label or '')} | {_reward(sample)} |"
        for sample in chosen
    )
    return f"| prompt | answer | reference | reward |\n| --- | --- | --- | ---: |\n{rows}"


def question(sample: Sample) -> str:
    """The end of the prompt, which holds the question whatever the chat template puts around it."""
    return sample.prompt_text.strip()[-TEXT_LIMIT:]


def _cell(text: str) -> str:
    shortened = text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…"
    escaped = shortened.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())


def _reward(sample: Sample) -> str:
    return "-" if sample.reward is None else f"{sample.reward:.2f}"
