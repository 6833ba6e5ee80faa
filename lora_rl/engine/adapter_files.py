"""An exported adapter on its way from the store into vLLM: read once, checked, and put where vLLM can load it."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors

from lora_rl.config import StoreConfig
from lora_rl.engine.types import Probe
from lora_rl.errors import DataError
from lora_rl.store import open_store
from lora_rl.store.refs import AdapterRef

_WEIGHT = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class AdapterFiles:
    """The contents of one exported version."""

    weights: bytes
    """adapter_model.safetensors"""
    config: bytes
    """adapter_config.json"""
    probe: Probe


def read_adapter(store: StoreConfig, ref: AdapterRef, *, max_rank: int) -> AdapterFiles:
    """Reads each file of `ref` once and checks it. Blocks.

    Raises StoreError, DigestMismatch for bytes other than those exported, DataError for files that vLLM could misread.
    """
    blobs = open_store(store)
    weights, config, probe = (blobs.get_blob(blob) for blob in (ref.weights, ref.config, ref.probe))
    _check_weights(ref.label, weights, rank=_checked_rank(ref.label, config, max_rank))
    return AdapterFiles(weights=weights, config=config, probe=_parse_probe(ref.label, probe))


@contextmanager
def peft_directory(files: AdapterFiles) -> Iterator[Path]:
    """A PEFT directory with `files`, in memory where the system has it, that lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="lora-rl-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        directory = Path(name)
        (directory / "adapter_model.safetensors").write_bytes(files.weights)
        (directory / "adapter_config.json").write_bytes(files.config)
        yield directory


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


def _check_weights(label: str, weights: bytes, *, rank: int) -> None:
    try:
        tensors = dict(safetensors.deserialize(weights))
    except safetensors.SafetensorError as error:
        raise DataError(f"{label}: adapter_model.safetensors cannot be read ({error}); export again") from error
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


def _parse_probe(label: str, data: bytes) -> Probe:
    try:
        probe = Probe(**json.loads(data))
        lengths = {len(probe.token_ids), len(probe.logp), len(probe.logp_base)}
    except (ValueError, TypeError) as error:
        raise DataError(f"{label}: the probe is not as the trainer writes it ({error!r}); export again") from error
    if len(lengths) != 1 or 0 in lengths or not probe.prompt_tokens:
        raise DataError(f"{label}: the probe's lists are empty or differ in length {sorted(lengths)}; export again")
    return probe
