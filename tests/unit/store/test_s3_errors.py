import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from s3fs.errors import translate_boto_error

from lora_rl.store.s3_errors import Refusal, explain, refusal_of


def reply(code: str, status: int) -> Exception:
    """What s3fs raises for an answer of the server."""
    answer = {"Error": {"Code": code, "Message": "told"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(ClientError(answer, "PutObject"))


URL = "http://user:secret-1234@store.example:9000/bucket/key"


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (reply("NoSuchKey", 404), Refusal.MISSING),
        (reply("404", 404), Refusal.MISSING),
        (FileNotFoundError("bucket/key"), Refusal.MISSING),
        (reply("NoSuchBucket", 404), Refusal.FINAL),
        (reply("PreconditionFailed", 412), Refusal.EXISTS),
        (reply("ConditionalRequestConflict", 409), Refusal.TRANSIENT),
        (reply("SlowDown", 503), Refusal.TRANSIENT),
        (reply("InternalError", 500), Refusal.TRANSIENT),
        (reply("502", 502), Refusal.TRANSIENT),
        (reply("TooManyRequests", 429), Refusal.TRANSIENT),
        (reply("RequestTimeout", 400), Refusal.TRANSIENT),
        (reply("NotImplemented", 501), Refusal.FINAL),
        (reply("EntityTooLarge", 413), Refusal.FINAL),
        (reply("ExpiredToken", 400), Refusal.CREDENTIALS),
        (reply("400", 400), Refusal.CREDENTIALS),
        (reply("AccessDenied", 403), Refusal.CREDENTIALS),
        (reply("403", 403), Refusal.CREDENTIALS),
        (NoCredentialsError(), Refusal.FINAL),
        (EndpointConnectionError(endpoint_url=URL), Refusal.TRANSIENT),
        (ConnectTimeoutError(endpoint_url=URL), Refusal.TRANSIENT),
        (ReadTimeoutError(endpoint_url=URL), Refusal.TRANSIENT),
        (ConnectionResetError(), Refusal.TRANSIENT),
    ],
)
def test_each_error_means_one_refusal(error: Exception, refusal: Refusal):
    assert refusal_of(error) is refusal


def test_endpoint_is_named_without_its_password():
    text = explain(EndpointConnectionError(endpoint_url=URL))
    assert text.startswith("store.example:9000 cannot be reached (EndpointConnectionError); ")
    assert "secret-1234" not in text
