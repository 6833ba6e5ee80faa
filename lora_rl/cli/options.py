"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from lora_rl.config import StoreConfig, load_config
from lora_rl.config.store import VARIABLE
from lora_rl.config.uri import redacted
from lora_rl.errors import ConfigError
from lora_rl.store import ArtifactStore, RunRecords, open_store
from lora_rl.tracking import run_names

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server and UI.")]
RayPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Ray head; not between 10002 and 19999.")]
RunName = Annotated[str, typer.Argument(help="Name of the run, or its YAML file.")]
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


def open_run(run: str, store: str | None) -> tuple[ArtifactStore, RunRecords, str]:
    """The store, the records of a run that exists in it, and the run's name. A YAML file says name and store.

    Raises ConfigError naming the runs there are.
    """
    if Path(run).suffix in (".yaml", ".yml"):
        config = load_config(run, store=store)
        where, run = config.store, str(config.run_name)
    else:
        where = store_config(store)
    artifact_store = open_store(where)
    records = RunRecords(artifact_store, run)
    if records.run_document() is None:
        names = run_names(artifact_store)
        raise ConfigError(
            f"run: no run {run!r} in {where.uri}; there {'are ' + ', '.join(names) if names else 'is none'}"
        )
    return artifact_store, records, run
