"""Adapters in memory that the processes of one host share: from trainer to engines, not by way of the store.

A hand-over is a PEFT directory in the engines' dtype. It is a cache: an engine that finds none, or other bytes than
were handed over, reads the store. An exporting process overwrites two directories of each adapter in turn, so their
pages are made once, and frees those of adapters that it no longer has in a slot before it hands over another. What dead
processes left is removed by the next one that exports, and by `lora-rl up` and `down`.
"""

import json
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from lora_rl.errors import StoreError
from lora_rl.store.canonical import canonical_json, sha256_of
from lora_rl.store.names import check_name
from lora_rl.store.refs import AdapterRef

WEIGHTS, CONFIG, PROBE = "adapter_model.safetensors", "adapter_config.json", "probe.json"
NOTE = "handover.json"
"""Says which exported version the directory holds; written last."""

RING = 2
"""Directories of one exporter: the version that engines may be loading, and the one being written."""

ROOM = 2**30
"""Least size of the memory file system, in bytes; that of a container may have 64 MiB."""

CHUNK = 2 * 2**20
"""Bytes that a thread digests at a time: the last ones are soon done."""
THREADS = max(1, min(16, (os.cpu_count() or 1) * 3 // 4))
"""That digest; the other cores load meanwhile. With 8 of 16 cores 175 MB take longer than their loading."""

logger = logging.getLogger("lora_rl.store")


@dataclass(frozen=True, kw_only=True)
class Handover:
    """One version's weights and config in a directory of this host's memory."""

    directory: str
    digest: str
    """Of weights and config together; see `digest_of`."""


def shared_folder() -> Path:
    """The folder of this user's hand-overs, which nobody else may enter; in memory, where there is room for them."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).total >= ROOM
    folder = (memory if roomy else Path(tempfile.gettempdir())) / f"lora-rl-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise StoreError(f"{folder}: belongs to another user; remove it")
    return folder


def ring_directory(adapter: str, version: int) -> Path:
    """An empty or outdated directory of this process for a version of `adapter`."""
    remove_orphans()
    directory = shared_folder() / f"{os.getpid()}-{check_name('adapter', adapter)}-{version % RING}"
    directory.mkdir(exist_ok=True)
    (directory / NOTE).unlink(missing_ok=True)
    return directory


def keep_only(adapters: Collection[str]) -> None:
    """Frees the memory of this process's hand-overs of all other adapters."""
    for directory in shared_folder().glob(f"{os.getpid()}-*"):
        if directory.name.partition("-")[2].rpartition("-")[0] not in adapters:
            shutil.rmtree(directory, ignore_errors=True)


def remove_orphans() -> None:
    """Frees the memory of hand-overs whose process is gone."""
    for directory in shared_folder().iterdir():
        if not _alive(directory.name.partition("-")[0]):
            shutil.rmtree(directory, ignore_errors=True)


def digest_of(directory: Path) -> str:
    """sha256 over the sha256 of each CHUNK bytes of the weights and that of the config. Several threads share it."""
    with (
        (directory / WEIGHTS).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        memoryview(memory) as weights,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        chunks = threads.map(lambda start: _sha256(weights, start), range(0, len(weights), CHUNK))
        return sha256_of("".join([*chunks, sha256_of((directory / CONFIG).read_bytes())]).encode())


def announce(directory: Path, ref: AdapterRef, probe: bytes) -> Handover:
    """Lets engines of this host find what stands in `directory` under the exported version `ref`, which is stored."""
    handover = Handover(directory=str(directory), digest=digest_of(directory))
    (directory / PROBE).write_bytes(probe)
    part = directory / f"{NOTE}.part"
    part.write_bytes(canonical_json({"weights": ref.weights.sha256, "handover": asdict(handover)}))
    part.replace(directory / NOTE)
    return handover


def find(ref: AdapterRef, known: str | None = None) -> Handover | None:
    """The hand-over of exactly that version on this host, all its bytes checked; None where none can be read.

    `known` is a digest that the caller has taken already: the same bytes are not read again.
    """
    try:
        return _found(ref, known)
    except OSError as error:
        logger.warning("%s: not looked for in shared memory, the store has it: %s", ref.label, error)
        return None


def _found(ref: AdapterRef, known: str | None) -> Handover | None:
    for path in shared_folder().glob(f"*/{NOTE}"):
        with suppress(FileNotFoundError):
            note = json.loads(path.read_bytes())
            small = ((CONFIG, ref.config), (PROBE, ref.probe))
            if note["weights"] == ref.weights.sha256 and all(
                sha256_of((path.parent / file).read_bytes()) == blob.sha256 for file, blob in small
            ):
                handover = Handover(**note["handover"])
                if handover.digest == known or handover.digest == digest_of(path.parent):
                    return handover
    return None


def _sha256(data: memoryview, start: int) -> str:
    with data[start : start + CHUNK] as chunk:
        return sha256_of(chunk)


def _alive(pid: str) -> bool:
    """Whether that process of this user runs. The number may be another user's by now: the folder is ours alone.

    One that has ended counts as gone also where nobody reaps it, as in many containers.
    """
    try:
        os.kill(int(pid), 0)
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except (ValueError, ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return False
