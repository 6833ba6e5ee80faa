from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.errors import DataError
from lora_rl.rewards.numeric import gsm8k, last_number, number
from tests.builders import make_sample


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it is 72.", "72"),
        ("1,234,567", "1234567"),
        ("1,2,3", "3"),
        ("12,3456", "3456"),
        ("-5", "-5"),
        ("5-3", "3"),
        ("5 - -3", "-3"),
        ("\N{MINUS SIGN}4", "-4"),
        ("$3.50", "3.5"),
        (".5", "0.5"),
        ("007", "7"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_last_number_is_read_by_value(text: str, expected: str) -> None:
    assert last_number(text) == Decimal(expected)


@pytest.mark.parametrize("text", ["", "none", "-", "٣", "."])
def test_text_without_digits_has_no_number(text: str) -> None:
    assert last_number(text) is None


@given(st.integers(), st.text(alphabet="abc .,!?\n", max_size=20))
def test_any_integer_is_found_after_any_words(value: int, words: str) -> None:
    assert last_number(f"{words} {value}") == value


@given(st.integers(min_value=1000))
def test_thousands_separators_do_not_change_the_value(value: int) -> None:
    assert last_number(f"{value:,}") == value


@pytest.mark.parametrize(
    ("text", "plain", "steps"),
    [("72", 1.0, 0.4), ("the answer is 72.0", 1.0, 0.3), ("-7", 0.0, 0.1), ("7 or 8", 0.0, 0.0), ("no", 0.0, 0.0)],
)
def test_number_gives_credit_for_the_value_and_for_being_bare(text: str, plain: float, steps: float) -> None:
    sample = make_sample(response_text=text, label="72")
    assert number(sample) == plain
    assert number(sample, right=0.3, bare=0.1) == pytest.approx(steps)


SOLUTION = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#### 72", 1.0),
        ("#### $72.00 for 3 days", 1.0),
        ("####\n72\n", 1.0),
        ("5 #### 72\nThat took 3 steps.", 1.0),
        ("#### 7 no wait #### 72", 1.0),
        ("so it is 72", 1.0),
        ("72 #### none", 1.0),
        ("72 #### 73", 0.0),
        ("#### 72 apples, or 73", 1.0),
        ("", 0.0),
    ],
)
@pytest.mark.parametrize("label", ["72", SOLUTION, "72.0"])
def test_gsm8k_compares_the_marked_or_last_number(text: str, label: str, expected: float) -> None:
    assert gsm8k(make_sample(response_text=text, label=label)) == expected


@pytest.mark.parametrize("grader", [number, gsm8k])
def test_label_without_a_number_is_an_error(grader) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match="holds no number"):
        grader(make_sample(label="Paris"))
