"""JSON that gives back what it was given."""

import json
import math
from pprint import pformat

import pytest

from lora_rl.data import exact_json


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, True, None, "é\n"]},
        ((1, (2,)), [(), []]),
        {0: "a", 1: {"b": (3,)}, (1, 2): []},
        {"0": "a", 0: "b"},
        {"__tuple__": [1], "__items__": []},
        {"outer": {"__tuple__": (1,)}},
    ],
)
def test_values_come_back_with_their_types(value):
    back = exact_json.loads(exact_json.dumps(value))
    assert back == value
    assert pformat(back) == pformat(value)


def test_equal_values_give_equal_text():
    assert exact_json.dumps({2: "b", 1: "a"}) == exact_json.dumps({1: "a", 2: "b"})
    assert exact_json.dumps({"b": 2, "a": 1}) == exact_json.dumps({"a": 1, "b": 2})


def test_plain_values_are_plain_json():
    value = {"a": [1, {"b": "c"}]}
    assert json.loads(exact_json.dumps(value)) == value


@pytest.mark.parametrize(("value", "error"), [({1, 2}, TypeError), (object(), TypeError), (math.inf, ValueError)])
def test_values_without_a_form_are_refused(value, error):
    with pytest.raises(error):
        exact_json.dumps([value])
