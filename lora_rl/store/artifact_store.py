"""The artifact store: content-addressed blobs, and documents that are created once.

An object is complete or absent, whoever dies while writing. All calls block; from a coroutine use `asyncio.to_thread`.
"""

import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

from lora_rl.config import StoreConfig
from lora_rl.errors import ConfigError, DigestMismatch, StoreError
from lora_rl.store.canonical import canonical_json, sha256_of
from lora_rl.store.local_objects import LocalObjects
from lora_rl.store.names import check_key, check_name, is_key
from lora_rl.store.objects import Objects, StoredObject
from lora_rl.store.refs import BlobRef

BLOBS = "cas"
"""The folder of all blobs."""

_BLOB = re.compile(rf"{BLOBS}/[^/]+/[0-9a-f]{{64}}")

FRESH_S = 12 * 3600
"""A blob that is put again after this is written again: `prune` spares blobs of twice this age, so that none is taken
away between its put and its record."""

LOST = "put it back from a backup, or go on from an iteration before it: `lora-rl run --fork RUN@ITERATION`"
"""What to do about a blob of a committed iteration; steps of others are done again without being asked."""


class ArtifactStore:
    def __init__(self, objects: Objects):
        self._objects = objects

    def uri(self, key: str = "") -> str:
        """Absolute URI of an object, or of the root: what other processes open, whatever their working directory."""
        return f"{self._objects.uri}/{check_key(key)}" if key else self._objects.uri

    def put_blob(self, kind: str, data: bytes) -> BlobRef:
        """Keeps `data` under its digest. A blob that is there and fresh is not written again. Raises StoreError."""
        digest = sha256_of(data)
        ref = BlobRef(key=f"{BLOBS}/{check_name('blob kind', kind)}/{digest}", sha256=digest, size=len(data))
        there = self._objects.stat(ref.key)
        if there is None or there.size != ref.size or time.time() - there.modified > FRESH_S:
            self._objects.write(ref.key, data)
        return ref

    def get_blob(self, ref: BlobRef) -> bytes:
        """The bytes of `ref`. Raises StoreError if they are missing, DigestMismatch if they are not those put."""
        data = self._objects.read(check_key(ref.key), ref.size)
        if data is None:
            raise StoreError(f"{self.uri(ref.key)}: missing; {LOST}")
        if (found := sha256_of(data)) != ref.sha256:
            raise DigestMismatch(
                f"{self.uri(ref.key)}: {len(data)} bytes with sha256 {found}, but {ref.size} with {ref.sha256} were "
                f"put; delete the object and {LOST}"
            )
        return data

    def has_blob(self, ref: BlobRef) -> bool:
        """Whether the blob is there with its size; its bytes are not read."""
        there = self._objects.stat(check_key(ref.key))
        return there is not None and there.size == ref.size

    def blobs(self) -> list[StoredObject]:
        """All blobs, unread, and nothing else that lies among them. Walks all of them: for upkeep."""
        return [found for found in self._objects.find(BLOBS) if _BLOB.fullmatch(found.key)]

    def delete_blob(self, blob: StoredObject) -> bool:
        """Deletes the blob unless it was written again since it was found; whether it did."""
        if self._objects.stat(check_key(blob.key)) != blob:
            return False
        self._objects.delete(blob.key)
        return True

    def create(self, key: str, doc: dict[str, Any]) -> dict[str, Any]:
        """Creates the document unless there is one, and returns the one that is there: whoever came first wins.

        The caller compares. Its own document may come back as another's: a write whose answer got lost is tried again.
        """
        data = canonical_json(doc)
        if self._objects.create(check_key(key), data):
            return json.loads(data)
        winner = self.read(key)
        if winner is None:
            raise StoreError(f"{self.uri(key)}: was deleted just now; run again, and delete nothing of a live run")
        return winner

    def read(self, key: str) -> dict[str, Any] | None:
        """The document, or None. Raises StoreError, also where the object is not a JSON document."""
        data = self._objects.read(check_key(key))
        if data is None:
            return None
        try:
            doc = json.loads(data)
        except ValueError as error:
            raise StoreError(f"{self.uri(key)}: not JSON ({error}); delete the object and run again") from error
        if not isinstance(doc, dict):
            raise StoreError(f"{self.uri(key)}: a JSON {type(doc).__name__}, not an object; delete it and run again")
        return doc

    def write(self, key: str, data: bytes) -> None:
        """Puts or replaces a plain object, such as a file of a promoted adapter. Blobs and records never pass here."""
        self._objects.write(check_key(key), data)

    def replace(self, key: str, doc: dict[str, Any]) -> None:
        """Puts a document in the place of one that proved worthless."""
        self._objects.write(check_key(key), canonical_json(doc))

    def delete(self, key: str) -> None:
        """Deletes an object; done also where there is none."""
        self._objects.delete(check_key(key))

    def list(self, prefix: str = "") -> list[str]:
        """Keys below the folder `prefix`, sorted, as they are at this moment. Walks all of them: not for hot paths."""
        return [found.key for found in self._objects.find(check_key(prefix.rstrip("/")) if prefix else "")]

    def check(self) -> None:
        """Writes, reads, lists and deletes a small object. Raises StoreError with the mend, within seconds."""
        objects, key, data = self._objects.impatient(), f"check/{uuid.uuid4().hex}", b"{}"
        objects.create(key, data)
        try:
            if objects.create(key, b"[]"):
                raise StoreError(
                    f"{self.uri(key)}: was created twice: the server ignores If-None-Match, which records need; "
                    "update the server"
                )
            if objects.read(key) != data or [found.key for found in objects.find("check")].count(key) != 1:
                raise StoreError(
                    f"{self.uri(key)}: not found right after its write; use a server with read-after-write"
                )
        finally:
            objects.delete(key)


def open_store(config: StoreConfig) -> ArtifactStore:
    """The store at `config.uri`. Touches nothing yet; `check` does. Raises ConfigError for a URI that cannot be one."""
    if not config.uri.startswith("s3://"):
        return ArtifactStore(LocalObjects(Path(config.uri.removeprefix("file://")).expanduser()))
    bucket, _, prefix = config.uri.removeprefix("s3://").rstrip("/").partition("/")
    if not is_key(bucket) or (prefix and not is_key(prefix)):
        raise ConfigError(
            "store.uri: not of the form s3://bucket/prefix with letters, digits, `.`, `_` and `-`; correct it, and set "
            "endpoint and credentials as AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    from lora_rl.store.s3_objects import S3Objects  # half a second to import

    return ArtifactStore(S3Objects(bucket, prefix))
