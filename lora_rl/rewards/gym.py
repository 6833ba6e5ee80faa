"""Grader of the reasoning-gym package: the scorer of the task family that made the prompt."""

import functools
from collections.abc import Callable

import reasoning_gym as library
from reasoning_gym.utils import extract_answer

from lora_rl.data.types import Sample
from lora_rl.errors import DataError


def reasoning_gym(sample: Sample, *, tag: str | None = None) -> float:
    """Score in [0, 1] by the task family's own scorer, which may give partial credit.

    `sample.metadata` is the metadata of the task's entry; its `source_dataset` names the family. Families that check an
    answer by computing need no label. With `tag` the answer is what stands in the last `<tag>...</tag>`, and the score
    is 0 without one; else it is the whole text.
    """
    family = sample.metadata.get("source_dataset")
    if family is None:
        raise DataError(f"sample {sample.id}: metadata has no source_dataset; use data.type reasoning_gym")
    text = sample.response_text
    answer = text.strip() if tag is None else extract_answer(text, tag_name=tag)
    entry = {"question": sample.prompt_text, "answer": sample.label, "metadata": sample.metadata}
    return float(_scorer(family)(answer, entry))


@functools.cache
def _scorer(family: str) -> Callable[..., float]:
    return library.get_score_answer_fn(family)
