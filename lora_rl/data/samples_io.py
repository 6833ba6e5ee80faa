"""Samples as one Parquet file: the artifact of a rollout and of its grading."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lora_rl.data import exact_json
from lora_rl.data.types import FinishReason, Sample
from lora_rl.errors import DataError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("prompt_text", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("response_text", pa.string(), nullable=False),
        pa.field("response_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("logp_rollout", pa.list_(pa.float64()), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("adapter_version", pa.string(), nullable=False),
        pa.field("adapter_digest", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("reward_details", pa.string(), nullable=False),
    ]
)
"""A column for each field of `Sample`; `metadata` and `reward_details` hold JSON.
Doubles, so that log-probabilities come back exactly."""

JSON_COLUMNS = ("metadata", "reward_details")


def write_samples(samples: Sequence[Sample]) -> bytes:
    """Parquet (zstd) of `samples`, in their order; the same samples give the same bytes.

    Raises DataError for lists of unequal length and for metadata that JSON cannot carry.
    """
    for sample in samples:
        _check_lengths(sample)
    columns: dict[str, list[Any]] = {name: [getattr(sample, name) for sample in samples] for name in SCHEMA.names}
    for name in JSON_COLUMNS:
        columns[name] = [_to_json(getattr(sample, name), name, sample.id) for sample in samples]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=SCHEMA), sink, compression="zstd", row_group_size=max(1, len(samples)))
    return sink.getvalue().to_pybytes()


def read_samples(data: bytes) -> list[Sample]:
    """The samples in bytes that `write_samples` made. Raises DataError that names the column at fault."""
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"samples: {len(data)} bytes are not a whole Parquet file ({error}); roll out again") from error
    _check_columns(table)
    columns = {name: table.column(name).to_pylist() for name in SCHEMA.names}
    samples = []
    for index, id in enumerate(columns["id"]):
        values = {name: column[index] for name, column in columns.items()}
        for name in JSON_COLUMNS:
            values[name] = _from_json(values[name], name, id)
        values["finish_reason"] = _finish_reason(values["finish_reason"], id)
        sample = Sample(**values)
        _check_lengths(sample)
        samples.append(sample)
    return samples


def _check_columns(table: pa.Table) -> None:
    for field in SCHEMA:
        if field.name not in table.column_names:
            raise DataError(f"samples: column {field.name} is missing; the file was not written by this version")
        column = table.column(field.name)
        if column.type != field.type:
            raise DataError(f"samples: column {field.name} holds {column.type}, not {field.type}")
        if column.null_count and not field.nullable:
            raise DataError(f"samples: column {field.name} has {column.null_count} empty cells; it must have none")


def _check_lengths(sample: Sample) -> None:
    if len(sample.response_tokens) != len(sample.logp_rollout):
        raise DataError(
            f"samples: {sample.id}: logp_rollout has {len(sample.logp_rollout)} values "
            f"for {len(sample.response_tokens)} response_tokens; they must be as many"
        )


def _to_json(values: dict[str, Any], column: str, id: str) -> str:
    try:
        return exact_json.dumps(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"samples: {id}: {column} has no JSON form ({error}); use plain, finite values") from error


def _from_json(text: str, column: str, id: str) -> dict[str, Any]:
    try:
        values = exact_json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"samples: {id}: column {column} is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise DataError(f"samples: {id}: column {column} holds JSON {type(values).__name__}, not an object")
    return values


def _finish_reason(text: str, id: str) -> FinishReason:
    if text not in set(FinishReason):
        raise DataError(f"samples: {id}: column finish_reason holds {text!r}, not one of {', '.join(FinishReason)}")
    return FinishReason(text)
