"""Graders that compare numbers."""

import re
from decimal import Decimal

from lora_rl.data.types import Sample
from lora_rl.errors import DataError
from lora_rl.rewards.labels import label_of

# A minus counts as a sign unless a digit stands before it: `5-3` ends in 3.
_SIGN = r"(?:(?<![0-9])-)?"
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(rf"{_SIGN}(?:{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)")


def number(sample: Sample, *, right: float = 1.0, bare: float = 0.0) -> float:
    """`right` if the last number of the answer equals the label's by value (`1,000.0` is `1000`), plus `bare` if the
    answer is a number and nothing else: steps on the way to `exact`."""
    is_right = last_number(sample.response_text) == _required(sample, last_number(label_of(sample)))
    is_bare = _NUMBER.fullmatch(sample.response_text.strip()) is not None
    return right * is_right + bare * is_bare


def gsm8k(sample: Sample) -> float:
    """1 if the number after the last `####` of the answer, or without one its last number, equals the label's; else 0.

    The label may be a number or a whole GSM8K solution that ends in `#### <number>`.
    """
    return float(_marked_number(sample.response_text) == _required(sample, _marked_number(label_of(sample))))


def last_number(text: str) -> Decimal | None:
    """The last decimal number in the text, without thousands separators; None where there is none."""
    found = _numbers(text)
    return found[-1] if found else None


def _marked_number(text: str) -> Decimal | None:
    _, marks, after = text.rpartition("####")
    found = _numbers(after) if marks else []
    return found[0] if found else last_number(text)


def _numbers(text: str) -> list[Decimal]:
    return [Decimal(digits.replace(",", "")) for digits in _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))]


def _required(sample: Sample, truth: Decimal | None) -> Decimal:
    if truth is None:
        raise DataError(
            f"sample {sample.id}: label {sample.label!r:.80} holds no number to compare with; use another grader"
        )
    return truth
