"""An exported adapter on its way to vLLM: found in shared memory or read from the store, and checked."""

import json
import logging
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lora_rl.config import StoreConfig
from lora_rl.engine.types import Probe
from lora_rl.errors import DataError
from lora_rl.store import open_store
from lora_rl.store.handover import CONFIG, PROBE, WEIGHTS, find, shared_folder
from lora_rl.store.refs import AdapterRef

logger = logging.getLogger("lora_rl.engine")

_WEIGHT = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True, kw_only=True)
class AdapterFiles:
    """One exported version, as vLLM can load it."""

    directory: Path
    """A PEFT directory."""
    probe: Probe
    handover: str | None
    """Digest of the hand-over that it is; null where it was read from the store."""


@contextmanager
def adapter_files(
    store: StoreConfig, ref: AdapterRef, *, max_rank: int, known: str | None = None
) -> Iterator[AdapterFiles]:
    """The files of `ref`, within the block, each read once: from memory that the trainer shares, else from the store.

    `known` is the digest of a hand-over that the caller has read. Blocks. Raises StoreError, DigestMismatch for bytes
    other than those exported, DataError for files that vLLM could misread.
    """
    handover = find(ref, known)
    if handover is not None:
        yield _checked(ref, Path(handover.directory), max_rank, handover.digest)
        return
    blobs = open_store(store)
    blobs_of = {WEIGHTS: ref.weights, CONFIG: ref.config, PROBE: ref.probe}
    contents = {file: blobs.get_blob(blob) for file, blob in blobs_of.items()}
    with ExitStack() as end:
        try:
            directory = _written(contents, end, shared_folder)
        except OSError as error:
            logger.warning("%s: not in shared memory but on the disk: %s", ref.label, error)
            directory = _written(contents, end, lambda: None)
        yield _checked(ref, directory, max_rank, None)


def _written(contents: Mapping[str, bytes], end: ExitStack, folder: Callable[[], Path | None]) -> Path:
    """A directory of `contents` that lasts until `end`, in `folder` or in the system's for temporary files."""
    temporary = tempfile.TemporaryDirectory(prefix=f"{os.getpid()}-", dir=folder())
    directory = Path(end.enter_context(temporary))
    for file, data in contents.items():
        (directory / file).write_bytes(data)
    return directory


def _checked(ref: AdapterRef, directory: Path, max_rank: int, handover: str | None) -> AdapterFiles:
    rank = _checked_rank(ref.label, (directory / CONFIG).read_bytes(), max_rank)
    _check_weights(ref.label, directory / WEIGHTS, rank=rank)
    probe = _parse_probe(ref.label, (directory / PROBE).read_bytes())
    return AdapterFiles(directory=directory, probe=probe, handover=handover)


def _checked_rank(label: str, config: bytes, max_rank: int) -> int:
    try:
        values = json.loads(config)
        kind, rank = values["peft_type"], values["r"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{label}: adapter_config.json is no PEFT config ({error!r}); export again") from error
    if kind != "LORA" or not isinstance(rank, int) or rank < 1:
        raise DataError(
            f"{label}: adapter_config.json says {kind!r} of rank {rank!r}; LORA of rank 1 or more is served"
        )
    if rank > max_rank:
        raise DataError(
            f"{label}: rank {rank} exceeds the engine's {max_rank}; raise trainer.max_rank or lower the rank"
        )
    return rank


def _check_weights(label: str, weights: Path, *, rank: int) -> None:
    tensors = _header(label, weights)
    parts: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        match = _WEIGHT.fullmatch(name)
        if match is None:
            raise DataError(
                f"{label}: tensor {name!r} is not base_model.model.<module>.lora_A|B.weight; export as PEFT"
            )
        shape, axis = tensor["shape"], 0 if match["part"] == "A" else 1
        if len(shape) != 2 or shape[axis] != rank:
            raise DataError(
                f"{label}: tensor {name!r} has shape {shape}, the config says rank {rank}; export both again"
            )
        parts.setdefault(match["module"], set()).add(match["part"])
    if not parts:
        raise DataError(f"{label}: adapter_model.safetensors holds no tensors; export the adapter again")
    incomplete = sorted(module for module, found in parts.items() if len(found) == 1)
    if incomplete:
        raise DataError(f"{label}: lora_A or lora_B is missing for {', '.join(incomplete[:3])} ...; export again")


def _header(label: str, weights: Path) -> dict[str, Any]:
    """Type, shape and place of each tensor; the tensors themselves are not read."""
    try:
        with weights.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > weights.stat().st_size:
                raise ValueError("the header is cut off")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != weights.stat().st_size:
            raise ValueError("the file does not end with the last tensor")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DataError(f"{label}: adapter_model.safetensors cannot be read ({error}); export again") from error
    return header


def _parse_probe(label: str, data: bytes) -> Probe:
    try:
        probe = Probe(**json.loads(data))
        lengths = {len(probe.token_ids), len(probe.logp), len(probe.logp_base)}
    except (ValueError, TypeError) as error:
        raise DataError(f"{label}: the probe is not as the trainer writes it ({error!r}); export again") from error
    if len(lengths) != 1 or 0 in lengths or not probe.prompt_tokens:
        raise DataError(f"{label}: the probe's lists are empty or differ in length {sorted(lengths)}; export again")
    return probe
