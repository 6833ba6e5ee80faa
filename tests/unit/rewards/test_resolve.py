import re

import pytest

from lora_rl.errors import ConfigError
from lora_rl.rewards import text
from lora_rl.rewards.resolve import BUILT_IN, checked_params, resolve_grader
from tests.builders import make_sample
from tests.unit.rewards import graders


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_grader_exists_and_is_documented(name: str) -> None:
    grader = resolve_grader(name)
    assert callable(grader)
    assert grader.__doc__


def test_function_of_the_users_is_found_by_module_and_name() -> None:
    assert resolve_grader("tests.unit.rewards.graders:good") is graders.good


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("exakt", "exakt: no such grader; use one of .*exact.* or module:function"),
        ("no_such_module:f", "no_such_module cannot be imported .ModuleNotFoundError"),
        ("tests.unit.rewards.graders:missing", "has no function missing"),
        ("tests.unit.rewards.graders:NOT_A_FUNCTION", "has no function NOT_A_FUNCTION"),
        ("boxed_exakt", "exakt: no such grader"),
        (":f", "cannot be imported"),
    ],
)
def test_unknown_grader_is_an_error_that_says_what_is_wrong(name: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        resolve_grader(name)


def test_boxed_prefix_shows_the_grader_the_last_box_alone() -> None:
    grader = resolve_grader("boxed_exact")
    assert grader(make_sample(response_text=r"so \boxed{4}", label="4")) == 1.0
    assert grader(make_sample(response_text="4", label="4")) == 0.0


def test_boxed_grader_takes_the_params_of_its_grader() -> None:
    grader = resolve_grader("boxed_format")
    params = checked_params(grader, {"pattern": "[0-9]"})
    assert grader(make_sample(response_text=r"\boxed{4}"), **params) == 1.0


def test_params_become_what_the_signature_asks() -> None:
    assert checked_params(text.matches_format, {"pattern": "a+"}) == {"pattern": re.compile("a+")}
    assert checked_params(graders.unannotated, {"threshold": "kept"}) == {"threshold": "kept"}


@pytest.mark.parametrize(
    ("name", "params", "fault"),
    [
        ("format", {}, "missing a required (keyword-only )?argument: 'pattern'"),
        ("format", {"pattern": "("}, r"params.pattern: '\(': .*regular expression"),
        ("exact", {"ignore_case": True}, "unexpected keyword argument 'ignore_case'"),
        ("number", {"right": "much"}, "params.right: 'much': .*number"),
        ("overlong", {"max_tokens": 100, "buffer_tokens": 0}, "params.buffer_tokens: 0: .*greater than 0"),
    ],
)
def test_unfit_params_are_an_error_that_names_them(name: str, params: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        checked_params(resolve_grader(name), params)
