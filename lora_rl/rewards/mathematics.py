"""Graders of mathematical answers: equal as normalised text, or else as expressions (math-verify)."""

import logging
import re
from typing import Any

from math_verify import parse, verify

from lora_rl.data.types import Sample
from lora_rl.rewards.boxed import last_boxed
from lora_rl.rewards.labels import label_of
from lora_rl.rewards.numeric import last_number

# Its own timeouts need SIGALRM and turn a hang into a wrong answer; ours counts it. Then it warns on every start.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NOTATION = (
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[!,;: ]|\\?\$|\^\{?\\circ\}?|\\?%"), ""),
    (re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"\s+"), ""),
)


def math(sample: Sample) -> float:
    r"""1 if the last `\boxed{}` of the answer equals the label; 0 if it does not, or there is none.

    The label may be an expression, a text with `\boxed{}`, or a GSM8K solution that ends in `#### <number>`.
    """
    answer = last_boxed(sample.response_text)
    return float(answer is not None and equal(answer, _truth(label_of(sample))))


def deepscaler(sample: Sample) -> float:
    r"""As `math`, on what follows the last `</think>`, or else `###Response`; without either 0."""
    for mark in ("</think>", "###Response"):
        _, found, conclusion = sample.response_text.rpartition(mark)
        if found:
            answer = last_boxed(conclusion)
            return float(answer is not None and equal(answer, _truth(label_of(sample))))
    return 0.0


def dapo(sample: Sample) -> float:
    """1 if the last `Answer: ...` line in the last 300 characters equals the label; else -1 (arXiv:2503.14476)."""
    answers = re.findall(r"(?i)answer\s*:\s*([^\n]+)", sample.response_text[-300:])
    if not answers:
        return -1.0
    answer = last_boxed(answers[-1]) or answers[-1]
    return 1.0 if equal(answer, _truth(label_of(sample))) else -1.0


def equal(answer: str, truth: str) -> bool:
    """Whether two answers say the same. Words are compared as text: as expressions `Pairs` would equal `Paris`."""
    plain_answer, plain_truth = normalised(answer), normalised(truth)
    if plain_answer == plain_truth:
        return True
    if not plain_answer or _is_word(plain_answer) or _is_word(plain_truth):
        return False
    return verify(_expressions(truth), _expressions(answer), timeout_seconds=None)


def normalised(answer: str) -> str:
    r"""The answer without what leaves its value alone: spaces, `$`, `%`, degrees, `\left`, `\text{}`, a final dot."""
    for pattern, replacement in _NOTATION:
        answer = pattern.sub(replacement, answer)
    return answer.rstrip(".")


def _truth(label: str) -> str:
    boxed = last_boxed(label)
    if boxed is not None:
        return boxed
    _, marks, after = label.rpartition("####")
    return after.strip() if marks and last_number(after) is not None else label


def _expressions(text: str) -> list[Any]:
    return parse(f"${text.strip().strip('$')}$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _is_word(text: str) -> bool:
    return len(text) > 1 and text.isalpha()
