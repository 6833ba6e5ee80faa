"""One store fixture for the contract: a folder, a real S3 server, and a second S3 implementation."""

import os
import uuid

import pytest

from lora_rl.config import StoreConfig
from lora_rl.store import ArtifactStore, open_store
from tests.s3 import BUCKET, S3Process


def use_environment(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """The AWS variables of this process become exactly these."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in variables.items():
        patch.setenv(name, value)


@pytest.fixture(params=["file", "seaweedfs", "moto"])
def store_uri(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{request.getfixturevalue('tmp_path')}/store"
    server: S3Process = request.getfixturevalue("s3_server" if request.param == "seaweedfs" else "moto_server")
    use_environment(monkeypatch, server.environment)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def store(store_uri: str) -> ArtifactStore:
    return open_store(StoreConfig(uri=store_uri))
