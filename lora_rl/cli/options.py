"""Options that several commands share."""

from typing import Annotated

import typer
from pydantic import ValidationError

from lora_rl.config import StoreConfig
from lora_rl.config.store import VARIABLE
from lora_rl.config.uri import redacted
from lora_rl.errors import ConfigError
from lora_rl.store import ArtifactStore, RunRecords, open_store

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server and UI.")]
RayPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Ray head; not between 10002 and 19999.")]
RunName = Annotated[str, typer.Argument(help="Name of the run.")]
StoreUri = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Folder, file://... or s3://bucket/prefix; else what the config says, then LORA_RL_STORE, then "
        "./lora-rl-store.",
    ),
]


def store_config(uri: str | None) -> StoreConfig:
    """The store at `uri`, or the default one, a folder's path made absolute for processes elsewhere.

    Raises ConfigError.
    """
    try:
        return (StoreConfig(uri=uri) if uri else StoreConfig()).absolute()
    except ValidationError as error:
        (fault,) = error.errors()
        raise ConfigError(
            f"{'--store' if uri else VARIABLE}: {redacted(repr(fault['input']))} is neither a folder, file://... nor "
            "s3://bucket/prefix, free of secrets; correct it"
        ) from None


def open_run(run: str, store: str | None) -> tuple[ArtifactStore, RunRecords]:
    """The store, and the records of a run that exists in it. Raises ConfigError naming the runs there are."""
    where = store_config(store)
    artifact_store = open_store(where)
    records = RunRecords(artifact_store, run)
    if records.run_document() is None:
        names = sorted({key.split("/")[1] for key in artifact_store.list("runs/") if key.count("/") == 2})
        raise ConfigError(
            f"run: no run {run!r} in {where.uri}; there {'are ' + ', '.join(names) if names else 'is none'}"
        )
    return artifact_store, records
