"""Paths and URIs that are recorded, and so may hold no secret."""

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

SECRET = "secret_in_uri"
"""Type of the fault; its text does not repeat the value."""

_USER = re.compile(r"://[^/?#\s'\"]*@")
_QUERY = re.compile(r"(?i)\?[^\s'\"]*(sig|token|secret|passw|key|credential|auth)[^\s'\"]*")


def _without_secret(uri: str) -> str:
    if _USER.search(uri) or ("://" in uri and _QUERY.search(uri)):
        raise PydanticCustomError(
            SECRET,
            "holds a name, password, key or signature, which would be recorded; leave it out and give it in the "
            "environment of all processes, as the AWS_* variables are, or copy the file",
        )
    return uri


Uri = Annotated[str, AfterValidator(_without_secret)]
"""A path, a name or a URI without user, password or signature."""


def redacted(text: str) -> str:
    """`text` with what may be secret in its URIs replaced by `***`."""
    return _QUERY.sub("?***", _USER.sub("://***@", text)) if "://" in text else text
