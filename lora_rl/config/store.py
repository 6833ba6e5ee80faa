"""Where runs are kept."""

import os
from pathlib import Path

from pydantic import Field

from lora_rl.config.base import Section
from lora_rl.config.uri import Uri

VARIABLE = "LORA_RL_STORE"
"""Environment variable with the URI of the store, where neither a command nor its config says one."""


class StoreConfig(Section):
    """Where runs are kept. Credentials stand elsewhere: s3fs reads the AWS_* variables, AWS_ENDPOINT_URL among them."""

    uri: Uri = Field(
        default_factory=lambda: os.environ.get(VARIABLE) or "file://./lora-rl-store", pattern=r"^(file|s3)://.+|^[^:]+$"
    )
    """Root of the store: a folder, `file://...` or `s3://bucket/prefix`; by default that of LORA_RL_STORE."""

    def absolute(self) -> "StoreConfig":
        """The same store, a folder named by its absolute path: processes elsewhere have other working directories."""
        if "://" in self.uri and not self.uri.startswith("file://"):
            return self
        return StoreConfig(uri=f"file://{Path(self.uri.removeprefix('file://')).expanduser().absolute()}")
