"""Every error survives the way between processes, and is a kind that a caller knows."""

import pickle
from collections.abc import Iterator

import pytest

from lora_rl.errors import LoraRlError

STDLIB_KINDS = (ValueError, OSError, RuntimeError, TimeoutError)


def descendants(kind: type[Exception]) -> Iterator[type[Exception]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


ERRORS = sorted(set(descendants(LoraRlError)), key=lambda kind: kind.__name__)


def test_the_tree_is_found() -> None:
    assert len(ERRORS) >= 12


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error_is_picklable_with_its_text(kind: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(kind("adapter.rank: 600 exceeds 64; lower it")))
    assert type(error) is kind
    assert str(error) == "adapter.rank: 600 exceeds 64; lower it"


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error_is_a_stdlib_kind_and_says_what_it_means(kind: type[Exception]) -> None:
    assert issubclass(kind, STDLIB_KINDS)
    assert kind.__doc__
    assert kind.__module__ == "lora_rl.errors"
