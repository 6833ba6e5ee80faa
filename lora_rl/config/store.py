"""Where runs are kept."""

from pathlib import Path

from pydantic import Field

from lora_rl.config.base import Section


class StoreConfig(Section):
    """Credentials never stand here: s3fs reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL from the environment."""

    uri: str = Field("file://./lora-rl-store", pattern=r"^(file|s3|memory)://.+|^[^:]+$")
    """Root of the store: a folder, `file://...` or `s3://bucket/prefix`."""

    def absolute(self) -> "StoreConfig":
        """The same store, a folder named by its absolute path: processes elsewhere have other working directories."""
        if "://" in self.uri and not self.uri.startswith("file://"):
            return self
        return StoreConfig(uri=f"file://{Path(self.uri.removeprefix('file://')).expanduser().absolute()}")
