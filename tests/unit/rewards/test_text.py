import pytest

from lora_rl.errors import DataError
from lora_rl.rewards.resolve import checked_params
from lora_rl.rewards.text import exact, f1, gpqa, matches_format, overlong
from tests.builders import make_sample


@pytest.mark.parametrize(
    ("text", "expected"), [("72", 1.0), (" 72\n", 1.0), ("72.", 0.0), ("So 72", 0.0), ("", 0.0), ("072", 0.0)]
)
def test_exact_wants_the_label_and_nothing_else(text: str, expected: float) -> None:
    assert exact(make_sample(response_text=text, label="72 ")) == expected


def test_label_that_is_needed_but_missing_is_an_error_with_the_sample() -> None:
    with pytest.raises(DataError, match=r"sample 0/0/0: .*label"):
        exact(make_sample(label=None))


@pytest.mark.parametrize(
    ("text", "expected"), [("<a>1</a>", 1.0), ("\n<a>1</a> ", 1.0), ("so <a>1</a>", 0.0), ("<a>1\n2</a>", 0.0)]
)
def test_format_wants_the_whole_answer_to_match(text: str, expected: float) -> None:
    params = checked_params(matches_format, {"pattern": "<a>.*</a>"})
    assert matches_format(make_sample(response_text=text), **params) == expected


def test_format_pattern_may_let_dots_match_line_ends() -> None:
    params = checked_params(matches_format, {"pattern": "(?s)<a>.*</a>"})
    assert matches_format(make_sample(response_text="<a>1\n2</a>"), **params) == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("the cat sat", 1.0), ("A cat!", 2 / 3), ("dog", 0.0), ("", 0.0), ("cat cat sat", 0.8)],
)
def test_f1_counts_shared_words(text: str, expected: float) -> None:
    assert f1(make_sample(response_text=text, label="Cat sat")) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: B", 1.0),
        ("the answer is (B).", 1.0),
        ("**Answer:** **B**", 1.0),
        ("Answer: A. No, answer: B", 1.0),
        ("Answer: C", 0.0),
        ("Answer: Bananas", 0.0),
        ("Answer: B. That answer I trust", 1.0),
        ("B", 0.0),
    ],
)
def test_gpqa_reads_the_last_letter_named_as_answer(text: str, expected: float) -> None:
    assert gpqa(make_sample(response_text=text, label="(B)")) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (120, -1.0)])
def test_overlong_penalty_falls_over_the_buffer(tokens: int, expected: float) -> None:
    sample = make_sample(response_tokens=[1] * tokens, logp_rollout=[0.0] * tokens)
    assert overlong(sample, max_tokens=100, buffer_tokens=20) == expected
