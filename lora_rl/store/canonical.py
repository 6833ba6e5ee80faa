"""One spelling for each JSON value, so that equal documents have equal bytes and digests."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces. Raises ValueError for NaN and infinities, which JSON lacks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256_of(data: bytes | memoryview) -> str:
    """Digest of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
