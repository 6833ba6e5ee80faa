"""The train state of one adapter as one safetensors blob: whole tensors by Hugging Face name, whatever the topology.

The same state gives the same bytes, and nothing is unpickled. Tensors are `<part>/<name>` in float32, with names
as `Lora` gives them and part one of `weights`, `exp_avg`, `exp_avg_sq`; the rest is JSON under the header's one
metadata key.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lora_rl.errors import DataError
from lora_rl.store.canonical import canonical_json
from lora_rl.trainer.adapter import Clock, Lora
from lora_rl.trainer.tensor_bytes import encode_tensors

METADATA_KEY = "lora_rl.train_state"
FORMAT = 1
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's, under torch's names."""


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that the next train step depends on, but its samples. Tensors are whole, by name, on the CPU."""

    lora: Lora
    clock: Clock
    seed: int
    """What the fresh adapter was drawn from. Dropout masks follow from a step's own seed and clock: no stream runs."""
    base: str
    """Fingerprint of the base model's weights."""
    weights: Mapping[str, Tensor]
    """float32 masters."""
    moments: Mapping[str, Mapping[str, Tensor]]
    """By MOMENTS."""


def encode_state(state: TrainState) -> bytes:
    """The blob of `state`."""
    parts = {"weights": state.weights, **state.moments}
    tensors = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
    facts = {
        "format": FORMAT,
        "lora": asdict(state.lora),
        "clock": asdict(state.clock),
        "seed": state.seed,
        "base": state.base,
    }
    return encode_tensors(tensors, {METADATA_KEY: canonical_json(facts).decode()})


def decode_state(data: bytes, source: str) -> TrainState:
    """The state in bytes that `encode_state` made; `source` names them in errors.

    Raises DataError for bytes that are empty, cut short or no train state, and for tensors that are missing, misshapen
    or not finite.
    """
    facts = _facts(data, source)
    try:
        lora = Lora(**(facts["lora"] | {"modules": tuple(facts["lora"]["modules"])}))
        clock, seed, base = Clock(**facts["clock"]), facts["seed"], facts["base"]
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise DataError(f"{source}: not a whole train state ({error}); resume from another") from error
    weights = _part(tensors, "weights", lora, source)
    moments = {moment: _part(tensors, moment, lora, source) for moment in MOMENTS}
    for moment, named in moments.items():
        check_shapes(named, {name: tuple(weights[name].shape) for name in weights}, f"{source}: {moment}")
    if len(tensors) != len(weights) * (1 + len(MOMENTS)):
        raise DataError(f"{source}: holds {len(tensors)} tensors for {len(weights)} weights; resume from another")
    return TrainState(lora=lora, clock=clock, seed=seed, base=base, weights=weights, moments=moments)


def check_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Raises DataError for the first tensor that is missing, has another shape, or is not finite."""
    for name, shape in shapes.items():
        if name not in tensors:
            raise DataError(f"{source}: tensor {name} is missing; use a whole file")
        if tuple(tensors[name].shape) != shape:
            raise DataError(
                f"{source}: tensor {name} has shape {list(tensors[name].shape)}, must be {list(shape)}; "
                "use a file of this base model and rank"
            )
        if not torch.isfinite(tensors[name]).all():
            raise DataError(f"{source}: tensor {name} is not finite; use an earlier file")


def _facts(data: bytes, source: str) -> dict[str, Any]:
    """The JSON in the header."""
    try:
        length = int.from_bytes(data[:8], "little")
        facts = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][METADATA_KEY])
        found = facts["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{source}: {len(data)} bytes are no train state; resume from another") from error
    if found != FORMAT:
        raise DataError(f"{source}: train state of format {found}, this version reads {FORMAT}; use the version before")
    return facts


def _part(tensors: Mapping[str, Tensor], part: str, lora: Lora, source: str) -> dict[str, Tensor]:
    named = {name: tensors[f"{part}/{name}"] for name in lora.tensors if f"{part}/{name}" in tensors}
    for name in lora.tensors:
        if name not in named:
            raise DataError(f"{source}: tensor {part}/{name} is missing; resume from another")
        if named[name].dtype != torch.float32 or not torch.isfinite(named[name]).all():
            raise DataError(f"{source}: tensor {part}/{name} is not finite float32; resume from another")
    return named
