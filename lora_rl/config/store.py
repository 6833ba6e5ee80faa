"""Where runs are kept."""

from pathlib import Path

from pydantic import Field

from lora_rl.config.base import Section


class StoreConfig(Section):
    """Where runs are kept. Credentials stand elsewhere: s3fs reads the AWS_* variables, AWS_ENDPOINT_URL among them."""

    uri: str = Field(default="file://./lora-rl-store", pattern=r"^(file|s3)://.+|^[^:]+$")
    """Root of the store: a folder, `file://...` or `s3://bucket/prefix`."""

    def absolute(self) -> "StoreConfig":
        """The same store, a folder named by its absolute path: processes elsewhere have other working directories."""
        if "://" in self.uri and not self.uri.startswith("file://"):
            return self
        return StoreConfig(uri=f"file://{Path(self.uri.removeprefix('file://')).expanduser().absolute()}")
