"""Rows of prompts as they lie in files, hub data sets and procedural tasks, before the chat template."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lora_rl.config.data import DataConfig, FileData, HubData, ReasoningGymData, TableData
from lora_rl.data import exact_json
from lora_rl.data.files import read_records
from lora_rl.data.hub import load_hub_records
from lora_rl.data.procedural import create_tasks
from lora_rl.data.records import Records
from lora_rl.errors import ConfigError, DataError

Message = dict[str, str]
"""A chat message: `role` and `content`."""

FIRST_TASKS = 8
"""Tasks of a family that tell whether the package still makes the same ones."""

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One prompt as its source has it."""

    input: str | list[Message]
    label: str | None
    metadata: dict[str, Any] = field(default_factory=dict)


class Rows(Protocol):
    """Rows by number. `__getitem__` raises DataError for a row that is not of the promised form."""

    digest: str
    """Rows with the same digest are the same."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row: ...


def open_rows(config: DataConfig, *, seed: int) -> Rows:
    """The rows that `config` names; `seed` decides procedural tasks only.

    Raises ConfigError for an unknown column, split, task or parameter, DataError for data that is unreadable or empty,
    and for rows of another digest than `config` gives.
    """
    match config:
        case FileData():
            rows = TableRows(read_records(config.uri), config, source=config.uri)
            for index in range(len(rows)):
                rows[index]
        case HubData():
            rows = TableRows(load_hub_records(config), config, source=config.path)
            rows[0]
        case ReasoningGymData():
            rows = TaskRows(config, seed=seed)
    if config.digest is not None and config.digest != rows.digest:
        raise DataError(
            f"data.digest: the rows found have {rows.digest[:12]}, not {config.digest[:12]}: they have changed; put "
            "back those that the run began with, or begin another run"
        )
    return rows


class TableRows:
    """Rows of a table with named columns."""

    def __init__(self, records: Records, config: TableData, *, source: str) -> None:
        if not len(records.rows):
            raise DataError(f"data: {source} is empty; give data with at least one row")
        self._records, self._config, self._source = records.rows, config, source
        self.digest = records.digest
        self._check_columns(sorted(self._records[0]))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int, /) -> Row:
        record, config = self._records[index], self._config
        return Row(
            input=self._input(record, index, config.input_key),
            label=None if config.label_key is None else self._label(record, index, config.label_key),
            metadata={} if config.metadata_key is None else self._metadata(record, index, config.metadata_key),
        )

    def _check_columns(self, present: list[str]) -> None:
        config = self._config
        keys = {"input_key": config.input_key, "label_key": config.label_key, "metadata_key": config.metadata_key}
        faults = [
            f"data.{key}: {name!r} is not a column of {self._source}, which has {', '.join(present)}; name one of these"
            + (" or set null" if key != "input_key" else "")
            for key, name in keys.items()
            if name is not None and name not in present
        ]
        if faults:
            raise ConfigError("\n".join(faults))

    def _cell(self, record: Mapping[str, Any], index: int, column: str) -> Any:
        value = record.get(column)
        if value is None:
            raise self._fault(index, column, "is missing or null", "fill it or remove the row")
        return value

    def _input(self, record: Mapping[str, Any], index: int, column: str) -> str | list[Message]:
        value = self._cell(record, index, column)
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise self._fault(index, column, f"holds {_kind(value)}", "use a text or a list of chat messages")
        for message in value:
            role = message.get("role") if isinstance(message, dict) else None
            if role not in ROLES or not isinstance(message.get("content"), str):
                raise self._fault(
                    index,
                    column,
                    f"has the message {message!r}",
                    f"give role ({', '.join(ROLES)}) and content (a text)",
                )
        if value[-1]["role"] == "assistant":
            raise self._fault(index, column, "ends with an assistant message", "end with what is to be answered")
        return [{"role": message["role"], "content": message["content"]} for message in value]

    def _label(self, record: Mapping[str, Any], index: int, column: str) -> str:
        value = self._cell(record, index, column)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._fault(index, column, f"holds {_kind(value)}", "use a text or a number")
        return str(value)

    def _metadata(self, record: Mapping[str, Any], index: int, column: str) -> dict[str, Any]:
        value = self._cell(record, index, column)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self._fault(index, column, f"is not JSON ({error})", "use a JSON object") from error
        if not isinstance(value, dict):
            raise self._fault(index, column, f"holds {_kind(value)}", "use a JSON object")
        return value

    def _fault(self, index: int, column: str, what: str, mend: str) -> DataError:
        return DataError(f"data: {self._source}, row {index}: column {column!r} {what}; {mend}")


class TaskRows:
    """Rows of a reasoning-gym task family."""

    def __init__(self, config: ReasoningGymData, *, seed: int) -> None:
        self._tasks, self._size = create_tasks(config, seed=seed), config.size
        first = [self[index] for index in range(min(FIRST_TASKS, self._size))]
        content = exact_json.dumps([[row.input, row.label, row.metadata] for row in first])
        self.digest = hashlib.sha256(content.encode()).hexdigest()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> Row:
        entry = self._tasks[index]
        return Row(input=entry["question"], label=entry["answer"], metadata=entry["metadata"])


def _kind(value: Any) -> str:
    return "an empty list" if value == [] else type(value).__name__
