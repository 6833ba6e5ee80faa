"""JSON that gives back what it was given: tuples stay tuples, and keys of objects keep their type.

Procedural tasks hold both in their metadata, and their scorers compare them. Plain values look as they do in JSON.
"""

import json
from typing import Any

TUPLE, ITEMS = "__tuple__", "__items__"
"""Sole keys of the objects that stand for a tuple, and for a mapping that JSON cannot carry as it is."""


def dumps(value: Any) -> str:
    """`value` as text; equal values give equal text.

    Raises TypeError for what has no form, ValueError for NaN and infinity.
    """
    return json.dumps(_encode(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def loads(text: str) -> Any:
    """The value that `dumps` was given. Raises json.JSONDecodeError."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    match value:
        case dict():
            if all(type(key) is str for key in value) and not value.keys() & {TUPLE, ITEMS}:
                return {key: _encode(item) for key, item in value.items()}
            items = sorted(value.items(), key=lambda item: repr(item[0]))
            return {ITEMS: [[_encode(key), _encode(item)] for key, item in items]}
        case tuple():
            return {TUPLE: [_encode(item) for item in value]}
        case list():
            return [_encode(item) for item in value]
        case _:
            return value


def _decode(value: Any) -> Any:
    match value:
        case {"__tuple__": items}:
            return tuple(_decode(item) for item in items)
        case {"__items__": items}:
            return {_decode(key): _decode(item) for key, item in items}
        case dict():
            return {key: _decode(item) for key, item in value.items()}
        case list():
            return [_decode(item) for item in value]
        case _:
            return value
