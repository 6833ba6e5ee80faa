"""Names and keys that cannot leave their folder."""

import re

from lora_rl.errors import ConfigError, StoreError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def check_name(kind: str, name: str) -> str:
    """`name`, fit to be one part of a key. `kind` says what it names, such as `run name`.

    Raises ConfigError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind}: {name!r} is not 1 to 128 letters, digits, `.`, `_` and `-` with no dot first; choose another name"
        )
    return name


def is_key(key: str) -> bool:
    """Whether `key` is a relative path that leads nowhere but down."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> str:
    """`key`, a relative path below the store's root. Raises StoreError."""
    if not is_key(key):
        raise StoreError(
            f"key {key!r}: not a relative path of letters, digits, `.`, `_` and `-` whose parts start with no dot; "
            "correct the name it is made of"
        )
    return key
