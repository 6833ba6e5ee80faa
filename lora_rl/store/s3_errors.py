"""What an S3 server, or the way to it, refused: read once from the many forms in which s3fs raises it."""

from enum import StrEnum
from urllib.parse import urlsplit

from aiohttp import ClientError as HttpError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.parsers import ResponseParserError

S3_ERRORS = (OSError, ClientError, BotoCoreError, ResponseParserError, HttpError)
"""Every kind that s3fs lets through."""

_CONNECTION_ERRORS = (ConnectionError, HTTPClientError, HttpError, TimeoutError, OSError)
_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)
_TRANSIENT_CODES = {"SlowDown", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "BadDigest"}


class Refusal(StrEnum):
    MISSING = "missing"
    """The object does not exist."""
    EXISTS = "exists"
    """The object exists and was to be created."""
    CREDENTIALS = "credentials"
    """Refused for who asks. May pass with credentials read afresh: temporary ones expire."""
    TRANSIENT = "transient"
    """May pass when tried again."""
    FINAL = "final"
    """Will not pass."""


def refusal_of(error: Exception) -> Refusal:
    """What `error`, one of S3_ERRORS, means for the call that raised it."""
    code, status = _reply(error)
    if isinstance(error, _NO_CREDENTIALS) or code == "NoSuchBucket":
        return Refusal.FINAL
    if isinstance(error, FileNotFoundError):
        return Refusal.MISSING
    if code == "PreconditionFailed":  # s3fs raises it as FileExistsError for some servers, as EINVAL for others
        return Refusal.EXISTS
    if status in (429, 500, 502, 503, 504) or code in _TRANSIENT_CODES:
        return Refusal.TRANSIENT
    if status in (400, 401, 403):  # a HEAD has no body: an expired token is a bare 400 there
        return Refusal.CREDENTIALS
    if status == 0 and isinstance(error, (*_CONNECTION_ERRORS, ResponseParserError)):
        return Refusal.TRANSIENT
    return Refusal.FINAL


def explain(error: Exception) -> str:
    """Reason and mend of `error`. Of what server and environment said it holds an error code and a host only."""
    code, status = _reply(error)
    if code == "NoSuchBucket":
        return "the bucket does not exist; create it, or correct store.uri"
    if isinstance(error, _NO_CREDENTIALS):
        return "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if status in (401, 403):
        return (
            f"the server does not allow it ({code or status}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "and that they may read, write, list and delete there"
        )
    if status:
        return f"the server answered {status} {code}; mend that and run again, what is committed stays"
    if isinstance(error, _CONNECTION_ERRORS):
        reason = f"{_endpoint(error)} cannot be reached ({type(error).__name__})"
        return f"{reason}; check AWS_ENDPOINT_URL and that the server runs"
    return f"{type(error).__name__}; see the cause"


def _reply(error: Exception) -> tuple[str, int]:
    """Error code and HTTP status of the server's reply; empty and 0 where there was none."""
    source = error if isinstance(error, ClientError) else error.__cause__
    if not isinstance(source, ClientError):
        return "", 0
    code = source.response.get("Error", {}).get("Code", "")
    return code, source.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _endpoint(error: Exception) -> str:
    url = error.kwargs.get("endpoint_url") if isinstance(error, BotoCoreError) else None
    return urlsplit(url).netloc.rpartition("@")[2] if url else "the endpoint"
