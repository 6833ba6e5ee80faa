"""PEFT directories of exported adapters, in the store and on disk; whole once the manifest, the last file, exists."""

import errno
import itertools
import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lora_rl.errors import ConfigError
from lora_rl.store.artifact_store import ArtifactStore
from lora_rl.store.canonical import canonical_json
from lora_rl.store.names import check_name
from lora_rl.store.refs import AdapterRef, BlobRef

MANIFEST = "manifest.json"


def promote_adapter(store: ArtifactStore, run: str, adapter: AdapterRef) -> str:
    """Copies the adapter to `adapters/<run>/<name>` in the store and returns the URI of that PEFT directory.

    Replaces an earlier version there; readers compare the manifest's digests. Raises StoreError, DigestMismatch.
    """
    folder = _folder(run, adapter)
    manifest_key = f"{folder}/{MANIFEST}"
    if store.read(manifest_key) != _manifest(adapter):
        store.delete(manifest_key)
        for file, ref in _files(adapter).items():
            store.write(f"{folder}/{file}", store.get_blob(ref))
        store.write(manifest_key, canonical_json(_manifest(adapter)))
    return store.uri(folder)


def promoted_uri(store: ArtifactStore, run: str, adapter: AdapterRef) -> str | None:
    """The URI of the PEFT directory that `promote_adapter` made of just this adapter, if it has."""
    folder = _folder(run, adapter)
    return store.uri(folder) if store.read(f"{folder}/{MANIFEST}") == _manifest(adapter) else None


def download_adapter(store: ArtifactStore, adapter: AdapterRef, out: Path) -> None:
    """Writes the adapter as the PEFT directory `out`, which appears complete or not at all.

    A directory that this function wrote is replaced; one that holds anything else is not. Raises ConfigError,
    StoreError, DigestMismatch.
    """
    out = out.absolute()
    if _manifest_at(out) == _manifest(adapter):
        return
    if not _may_replace(out):
        raise ConfigError(f"{out}: is not an empty folder and no downloaded adapter; give another one")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        fresh = Path(folder, "new")
        fresh.mkdir()
        for file, ref in _files(adapter).items():
            (fresh / file).write_bytes(store.get_blob(ref))
        (fresh / MANIFEST).write_bytes(canonical_json(_manifest(adapter)))
        _put(fresh, out, Path(folder))


def _folder(run: str, adapter: AdapterRef) -> str:
    return f"adapters/{check_name('run name', run)}/{check_name('adapter name', adapter.name)}"


def _put(fresh: Path, out: Path, scratch: Path) -> None:
    """Moves `fresh` to `out`, and another version that is there to `scratch`. Others may be doing the same."""
    for attempt in itertools.count():
        try:
            fresh.rename(out)
            return
        except OSError as error:
            # where `out` is a link to a folder: ENOTDIR
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if _manifest_at(out) == _manifest_at(fresh):
            return
        with suppress(FileNotFoundError):  # another has moved it
            out.rename(scratch / f"old-{attempt}")


def _files(adapter: AdapterRef) -> dict[str, BlobRef]:
    return {"adapter_config.json": adapter.config, "adapter_model.safetensors": adapter.weights}


def _manifest(adapter: AdapterRef) -> dict[str, Any]:
    files = {file: {"sha256": ref.sha256, "size": ref.size} for file, ref in _files(adapter).items()}
    return {"name": adapter.name, "version": adapter.version, "files": files}


def _manifest_at(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None


def _may_replace(out: Path) -> bool:
    """Whether nothing is there, or nothing but a download."""
    try:
        names = {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return not out.exists()  # then a folder above it is a file, and writing says so
    return names <= {"adapter_config.json", "adapter_model.safetensors", MANIFEST} and (not names or MANIFEST in names)
