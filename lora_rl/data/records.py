"""What a table of prompts holds, wherever it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records by number, and the digest of all of them."""

    rows: Sequence[Mapping[str, Any]]
    digest: str
