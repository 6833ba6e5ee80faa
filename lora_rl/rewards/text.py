"""Graders that look at the text alone."""

import re
import string
from collections import Counter

from pydantic import PositiveInt

from lora_rl.data.types import Sample
from lora_rl.rewards.labels import label_of


def exact(sample: Sample) -> float:
    """1 if the answer is the label, outer white space aside; else 0."""
    return float(sample.response_text.strip() == label_of(sample).strip())


def matches_format(sample: Sample, *, pattern: re.Pattern[str]) -> float:
    """1 if the whole answer, outer white space aside, matches the regular expression `pattern`; else 0.

    A dot matches no line end unless the pattern begins with `(?s)`.
    """
    return float(pattern.fullmatch(sample.response_text.strip()) is not None)


def f1(sample: Sample) -> float:
    """F1 of the words that answer and label share, without case, punctuation and articles (SQuAD, arXiv:1606.05250)."""
    answer, label = Counter(_words(sample.response_text)), Counter(_words(label_of(sample)))
    if not answer or not label:
        return float(answer == label)
    return 2 * (answer & label).total() / (answer.total() + label.total())


def gpqa(sample: Sample) -> float:
    """1 if the last `Answer: X` of the answer names the label's letter (A to H, in brackets or bold too); else 0."""
    letters = re.findall(r"(?i:answer(?:\s+is)?)[\s:*(\[$]*([A-H])\b", sample.response_text)
    return float(bool(letters) and letters[-1] == label_of(sample).strip().strip("()").upper())


def overlong(sample: Sample, *, max_tokens: PositiveInt, buffer_tokens: PositiveInt) -> float:
    """Soft overlong penalty (DAPO, arXiv:2503.14476, section 3.4): 0 up to `max_tokens - buffer_tokens`, then falling
    linearly to -1 at `max_tokens`, and -1 beyond."""
    excess = len(sample.response_tokens) - (max_tokens - buffer_tokens)
    return -min(max(excess / buffer_tokens, 0.0), 1.0)


def _words(text: str) -> list[str]:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in plain.split() if word not in ("a", "an", "the")]
