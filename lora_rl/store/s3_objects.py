"""Objects in an S3 bucket, through s3fs."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import s3fs

from lora_rl.errors import ConfigError, StoreError
from lora_rl.store.objects import StoredObject
from lora_rl.store.s3_errors import S3_ERRORS, Refusal, explain, refusal_of

_RANGED_READ_BYTES = 50 * 2**20
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between attempts: doubled each time, up to a bound. The default rides out 40 seconds."""

    attempts: int = 9
    first_s: float = 0.25
    longest_s: float = 10.0

    def delays(self) -> Iterator[float]:
        """Seconds before the second attempt, the third, and so on."""
        return (min(self.first_s * 2**n, self.longest_s) for n in range(self.attempts - 1))


class S3Objects:
    """The objects of `bucket` below `prefix`. Safe to call from several threads; open one in each process."""

    def __init__(self, bucket: str, prefix: str, backoff: Backoff = Backoff()):
        _check_endpoint()
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket, self._prefix, self._backoff = bucket, prefix, backoff
        # An instance of our own: another user's cached one may hold old listings and credentials.
        self._fs = s3fs.S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={"retries": {"mode": "standard", "total_max_attempts": 3}},
        )
        self._fs.retries = 1  # its own rounds would multiply with ours

    def impatient(self) -> "S3Objects":
        """The same objects, reached at the second attempt or not at all."""
        return S3Objects(self._bucket, self._prefix, Backoff(attempts=2))

    def write(self, key: str, data: bytes) -> None:
        # Never `with fs.open(...)`: an exception inside it commits what was written so far.
        self._call("write", key, self._fs.pipe_file, data)

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._call("write", key, self._fs.pipe_file, data, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, key: str, size: int = 0) -> bytes | None:
        ranges = None if size > _RANGED_READ_BYTES else 1  # one range spares the HEAD request before the GET
        try:
            return self._call("read", key, self._fs.cat_file, max_concurrency=ranges)
        except FileNotFoundError:
            return None

    def stat(self, key: str) -> StoredObject | None:
        try:
            info = self._call("read", key, self._fs.info)
        except FileNotFoundError:
            return None
        return _stored(key, info) if info["type"] == "file" else None

    def find(self, prefix: str) -> list[StoredObject]:
        try:
            found = self._call("list", prefix, self._fs.find, detail=True)
        except FileNotFoundError:
            return []
        folder, root = self._path(prefix) + "/", self._path("") + "/"
        files = sorted(path for path in found if path.startswith(folder) and not path.endswith("/"))
        return [_stored(path.removeprefix(root), found[path]) for path in files]

    def delete(self, key: str) -> None:
        self._call("delete", key, self._fs.rm_file)

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self._bucket, self._prefix, key) if part)

    def _call(self, doing: str, key: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Transient refusals are tried again. Raises FileNotFoundError, FileExistsError or StoreError."""
        delays, renew, renewed = self._backoff.delays(), False, False
        while True:
            try:
                if renew:
                    self._fs.connect(refresh=True)
                    renew, renewed = False, True
                return method(self._path(key), *args, **options)
            except S3_ERRORS as error:
                refusal = refusal_of(error)
                if refusal is Refusal.MISSING:
                    raise FileNotFoundError(key) from error
                if refusal is Refusal.EXISTS:
                    raise FileExistsError(key) from error
                renew = refusal is Refusal.CREDENTIALS and not renewed
                delay = 0.0 if renew else next(delays, None) if refusal is Refusal.TRANSIENT else None
                if delay is None:
                    raise StoreError(f"{self.uri}/{key}: {doing} failed: {explain(error)}") from error
            time.sleep(delay)


def _stored(key: str, info: dict[str, Any]) -> StoredObject:
    return StoredObject(key=key, size=info["size"], modified=int(info["LastModified"].timestamp()))


def _check_endpoint() -> None:
    """The endpoint stands in botocore's error texts, so it must hold no password."""
    for variable in _ENDPOINT_VARIABLES:
        if "@" in urlsplit(os.environ.get(variable, "")).netloc:
            raise ConfigError(
                f"{variable}: holds a user or password; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its place"
            )
