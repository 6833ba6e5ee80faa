import time

import pytest

from lora_rl.rewards.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} or rather \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\boxed{b}}", "b"),
        (r"\boxed{}", ""),
        (r"\boxed{7} and then \boxed{cut o", "7"),
        (r"\boxed{cut \boxed{off", None),
        ("no box", None),
    ],
)
def test_last_complete_box_is_taken(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


def test_a_long_run_of_open_boxes_takes_linear_time() -> None:
    started = time.process_time()
    assert last_boxed(r"\boxed{" * 100_000) is None
    assert time.process_time() - started < 2.0
