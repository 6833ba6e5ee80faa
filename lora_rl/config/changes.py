"""What differs between two configs, as plain values."""

from collections.abc import Iterable
from typing import Any


def differences(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> list[str]:
    """Each field whose value differs, as `field: theirs -> ours`."""
    lines = []
    for key in sorted(ours.keys() | theirs.keys()):
        here = f"{path}.{key}" if path else key
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            lines += differences(mine, other, here)
        elif mine != other:
            lines.append(f"{here}: {other!r} -> {mine!r}")
    return lines


def without(values: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """`values` less the fields at the dotted `paths`, some of which it may lack."""
    for path in paths:
        head, _, rest = path.partition(".")
        if not rest:
            values = {key: value for key, value in values.items() if key != head}
        elif isinstance(values.get(head), dict):
            values = values | {head: without(values[head], [rest])}
    return values
