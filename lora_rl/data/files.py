"""Records of a JSONL or Parquet file, wherever fsspec reaches."""

import hashlib
import json
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import BotoCoreError

from lora_rl.data.records import Records
from lora_rl.errors import DataError


def read_records(uri: str) -> Records:
    """Every record of the file at `uri` (path or fsspec URI), and the sha256 of its bytes.

    Raises DataError where it cannot be read whole.
    """
    if not uri.endswith((".jsonl", ".parquet")):
        raise DataError(f"data.uri: {uri!r} ends in neither .jsonl nor .parquet; convert it or rename it")
    try:
        with fsspec.open(uri, "rb") as file:
            data = file.read()  # type: ignore[union-attr]
    except (OSError, ValueError, ImportError, BotoCoreError) as error:
        raise DataError(
            f"data.uri: {uri!r} cannot be read ({type(error).__name__}: {error}); give a path or an fsspec URI that "
            "this machine can open"
        ) from error
    rows = _parquet(uri, data) if uri.endswith(".parquet") else _jsonl(uri, data)
    return Records(rows=rows, digest=hashlib.sha256(data).hexdigest())


def _parquet(uri: str, data: bytes) -> list[dict[str, Any]]:
    try:
        return pq.read_table(pa.BufferReader(data)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data.uri: {uri!r} is not a whole Parquet file ({error}); write it again") from error


def _jsonl(uri: str, data: bytes) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"data.uri: {uri!r}, line {number} is not JSON ({error}); mend or remove it") from error
        if not isinstance(record, dict):
            raise DataError(
                f"data.uri: {uri!r}, line {number} holds JSON {type(record).__name__}; give one object a line"
            )
        records.append(record)
    return records
