"""Records of a Hugging Face data set."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lora_rl.config.data import HubData
from lora_rl.data.records import Records
from lora_rl.errors import DataError


def load_hub_records(config: HubData) -> Records:
    """The records of one split, read from disk as they are used; the digest is of its Arrow table.

    Raises DataError where they cannot be loaded, and where a column that is used has nulls.
    """
    import datasets  # takes seconds to import; only this source needs it

    try:
        if _is_saved_folder(config.path):
            loaded = datasets.load_from_disk(config.path)
            if isinstance(loaded, datasets.DatasetDict):
                if config.split not in loaded:
                    raise ValueError(f"unknown split {config.split!r}; it has {', '.join(map(str, loaded))}")
                loaded = loaded[config.split]
        else:
            loaded = datasets.load_dataset(config.path, config.name, split=config.split, revision=config.revision)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.path: {config.path!r} (name {config.name}, split {config.split}) cannot be loaded "
            f"({type(error).__name__}: {error}); give a data set of the hub, its folder, or one of `save_to_disk`"
        ) from error
    table = loaded.data
    for column in {config.input_key, config.label_key, config.metadata_key} & set(table.column_names):
        if nulls := table.column(column).null_count:
            raise DataError(
                f"data.path: {config.path!r} (split {config.split}): column {column!r} has {nulls} nulls; fill them or "
                "remove their rows"
            )
    digest = hashlib.sha256()
    for batch in table.to_batches():
        digest.update(batch.serialize())
    return Records(rows=cast(Sequence[Mapping[str, Any]], loaded), digest=digest.hexdigest())


def _is_saved_folder(path: str) -> bool:
    return any((Path(path) / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
