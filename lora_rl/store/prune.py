"""What a store can do without: checkpoints of old iterations, and blobs that no record refers to.

A checkpoint is an iteration's train state and exported adapter: nearly all bytes of a store. Samples, records and
promoted adapters always stay, and so does each checkpoint that a run can go on from: its start, its last committed
iteration, what is not committed yet, and the one that a fork without a committed iteration starts from.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lora_rl.errors import StoreError
from lora_rl.store.artifact_store import BLOBS, FRESH_S, ArtifactStore
from lora_rl.store.objects import StoredObject
from lora_rl.store.refs import ADAPTER, STATE
from lora_rl.store.run_records import READERS, START, iteration_of, may_refer

GRACE_S = 2 * FRESH_S
"""Younger blobs stay: a step may have put them and not recorded them yet."""

QUEUED = 4 * READERS
"""Deletions that are handed to the workers at a time."""

CHECKPOINT = (f"{BLOBS}/{STATE}/", f"{BLOBS}/{ADAPTER}/")

Iteration = tuple[str, int]
"""Run and number."""


@dataclass(frozen=True, kw_only=True)
class Thinning:
    """Whose checkpoints stay, of the committed iterations."""

    runs: Collection[str] | None
    """Of these, of all where it is null; other runs keep theirs."""
    keep_last: int
    """So many of the last; at least 1."""
    keep_every: int | None = None
    """Those whose number this divides."""

    def given_up(self, committed: set[Iteration]) -> set[Iteration]:
        """Those of the iterations that lose their checkpoint."""
        numbers: dict[str, list[int]] = {}
        for run, number in sorted(committed):
            if number != START and (self.runs is None or run in self.runs):
                numbers.setdefault(run, []).append(number)
        return {
            (run, number)
            for run, all_numbers in numbers.items()
            for number in all_numbers[: -self.keep_last]
            if self.keep_every is None or number % self.keep_every
            # where someone took back commits, the run goes on from the last one before the gap
            if (run, number + 1) in committed
        }


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """What can be deleted."""

    blobs: Sequence[StoredObject]
    iterations: dict[str, int]
    """How many iterations of each run lose their checkpoint."""
    kept: Sequence[StoredObject]
    """All other blobs."""


def prunable(store: ArtifactStore, thinning: Thinning | None, *, now: float) -> Prunable:
    """What can be deleted at `now`, in seconds since 1970; without `thinning` only what no record refers to.

    Reads nearly all records. Raises StoreError where one cannot be read or none is there: what they refer to is not
    known then.
    """
    # Listed before the records are read: what is put and recorded after this is not among them, or young.
    blobs = store.blobs()
    keys = [key for key in store.list("runs") if may_refer(key)]
    if blobs and not keys:
        raise StoreError(
            f"{store.uri('runs')}: holds no record, so every blob would be deleted; bring the records back, or delete "
            f"{store.uri(BLOBS)} yourself"
        )
    committed = {iteration for key in keys if key.endswith("/COMMIT.json") and (iteration := iteration_of(key))}
    given_up = thinning.given_up(committed) - _awaited(store, keys, committed) if thinning else set()
    needed: set[str] = set()
    checkpoints: list[tuple[str, Iteration]] = []
    with ThreadPoolExecutor(READERS) as readers:
        for key, document in zip(keys, readers.map(store.read, keys), strict=True):
            iteration = iteration_of(key)
            for blob in _blob_keys(document):
                if iteration and iteration in given_up and blob.startswith(CHECKPOINT):
                    checkpoints.append((blob, iteration))
                else:
                    needed.add(blob)
    old = {blob.key for blob in blobs if blob.key not in needed and now - blob.modified > GRACE_S}
    lost = {iteration for blob, iteration in checkpoints if blob in old}
    return Prunable(
        blobs=[blob for blob in blobs if blob.key in old],
        iterations=dict(Counter(run for run, _ in sorted(lost))),
        kept=[blob for blob in blobs if blob.key not in old],
    )


def prune(store: ArtifactStore, blobs: Sequence[StoredObject]) -> Iterator[bool]:
    """Deletes the blobs, many at a time; yields for each whether it did. One that was put again meanwhile stays."""
    with ThreadPoolExecutor(READERS) as workers:
        # all that is queued is still deleted when the caller is interrupted
        for first in range(0, len(blobs), QUEUED):
            yield from workers.map(store.delete_blob, blobs[first : first + QUEUED])


def _awaited(store: ArtifactStore, keys: Iterable[str], committed: set[Iteration]) -> set[Iteration]:
    """What runs that have not begun are forks of: they may not refer to its state themselves, or no longer."""
    documents = [store.read(key) for key in keys if key.endswith("/run.json") and not _begun(key, committed)]
    forks = [document["fork"] for document in documents if document and document.get("fork")]
    return {(fork["run"], fork["iteration"]) for fork in forks}


def _begun(key: str, committed: set[Iteration]) -> bool:
    """Until its first iteration is committed a run may get another config, and starts again."""
    return (key.split("/")[1], 0) in committed


def _blob_keys(value: Any) -> Iterator[str]:
    """Keys of all references to blobs in a document."""
    if isinstance(value, dict):
        if {"key", "sha256", "size"} <= value.keys():
            yield value["key"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _blob_keys(each)
