"""Objects as files below a folder. Each is complete or absent: written aside, synced, then linked or renamed."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lora_rl.errors import StoreError
from lora_rl.store.objects import StoredObject

_NOT_WRITABLE = "give a folder that this user may read and write as store.uri"
_DISK_FULL = "free some space, or move the store"
_MENDS = {
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EROFS: _NOT_WRITABLE,
    errno.ENOTDIR: "a part of this path is a file; give a folder as store.uri",
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EOPNOTSUPP: "this file system has no hard links, which exclusive records need; use another, or s3://",
}


class LocalObjects:
    """The objects below the folder `root`, which is made at the first write."""

    def __init__(self, root: Path):
        self._root = Path(os.path.abspath(root))
        self._staging = self._root / ".staging"
        self.uri = f"file://{self._root}"

    def impatient(self) -> "LocalObjects":
        return self

    def write(self, key: str, data: bytes) -> None:
        path = self._root / key
        with self._translated("write", key), self._staged(data) as staged:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged, path)
            _sync_folder(path.parent)

    def create(self, key: str, data: bytes) -> bool:
        path = self._root / key
        with self._translated("write", key), self._staged(data) as staged:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(staged, path)
            except FileExistsError:
                return False
            _sync_folder(path.parent)
        return True

    def read(self, key: str, size: int = 0) -> bytes | None:
        with self._translated("read", key):
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None

    def stat(self, key: str) -> StoredObject | None:
        with self._translated("read", key):
            try:
                found = (self._root / key).stat()
            except FileNotFoundError:
                return None
        return StoredObject(key=key, size=found.st_size, modified=int(found.st_mtime))

    def find(self, prefix: str) -> list[StoredObject]:
        folder = self._root / prefix
        with self._translated("list", prefix):
            if not folder.is_dir():
                return []
            # a run's folder may be a link to another disk
            walk = os.walk(folder, onerror=_raise, followlinks=True)
            files = [Path(parent, name) for parent, _, names in walk for name in names]
        keys = sorted(path.relative_to(self._root).as_posix() for path in files if path.parent != self._staging)
        # one may be deleted meanwhile
        return [found for found in map(self.stat, keys) if found is not None]

    def delete(self, key: str) -> None:
        with self._translated("delete", key):
            (self._root / key).unlink(missing_ok=True)

    @contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        self._staging.mkdir(parents=True, exist_ok=True)
        path = self._staging / uuid.uuid4().hex
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _translated(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            mend = _MENDS.get(error.errno or 0, "mend the cause and run again; what is committed stays")
            raise StoreError(f"{self.uri}/{key}: {doing} failed: {error.strerror}; {mend}") from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error
