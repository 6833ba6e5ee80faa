import pytest

from lora_rl.rewards.mathematics import dapo, deepscaler, equal, math
from tests.builders import make_sample


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("72", "72."),
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        ("1,234", "1234"),
        (r"\text{Paris}", "Paris"),
        (r"90^\circ", "90"),
        (r"10\%", "10"),
        ("$5", "5"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        ("x = 5", "5"),
        (r"\{1,2\}", r"\{2,1\}"),
    ],
)
def test_answers_that_say_the_same_are_equal(answer: str, truth: str) -> None:
    assert equal(answer, truth)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [("73", "72"), ("", "72"), ("Pairs", "Paris"), ("[0,1)", "[0,1]"), ("-5", "5"), (r"\frac{", "1"), ("x", "Paris")],
)
def test_answers_that_differ_are_not_equal(answer: str, truth: str) -> None:
    assert not equal(answer, truth)


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        (r"thus \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{1}, no: \boxed{2}", "2", 1.0),
        (r"\boxed{2}, no: \boxed{1}", "2", 0.0),
        ("2", "2", 0.0),
        (r"\boxed{}", "2", 0.0),
        (r"\boxed{2}", r"the solution is \boxed{2}", 1.0),
        (r"\boxed{72}", "48 + 24 = 72\n#### 72", 1.0),
    ],
)
def test_math_compares_the_last_box(text: str, label: str, expected: float) -> None:
    assert math(make_sample(response_text=text, label=label)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", 1.0),
        (r"### stuff ###Response \boxed{2}", 1.0),
        (r"<think>\boxed{2}</think> done", 0.0),
        (r"\boxed{2}", 0.0),
    ],
)
def test_deepscaler_looks_behind_the_thoughts(text: str, expected: float) -> None:
    assert deepscaler(make_sample(response_text=text, label="2")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: 34", 1.0),
        ("answer : $34$", 1.0),
        (r"Answer: \boxed{34}", 1.0),
        ("Answer: 33\nAnswer: 34", 1.0),
        ("Answer: 35", -1.0),
        ("34", -1.0),
        ("Answer: 34" + " " * 300, -1.0),
    ],
)
def test_dapo_scores_the_last_answer_line_by_plus_or_minus_one(text: str, expected: float) -> None:
    assert dapo(make_sample(response_text=text, label="34")) == expected
