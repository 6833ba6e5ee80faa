"""`lora-rl run`."""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from lora_rl.config import RunConfig, load_config
from lora_rl.store import STEPS, RunRecords, open_store

QUIET_CONSOLE = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR", "PREFECT_LOGGING_EXTRA_LOGGERS": ""}
"""The progress display takes the terminal; Prefect's server still gets every line."""


def run(
    config: Annotated[Path, typer.Argument(help="YAML file; see examples/.")],
    run_name: Annotated[str | None, typer.Option(help="Name in the store; the file's name by default.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder, file://... or s3://bucket/prefix.", envvar="LORA_RL_STORE")
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", help="key.path=value, over the file; repeatable.")] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and the plan; allocate nothing.")
    ] = False,
) -> None:
    """Runs CONFIG to its end, or goes on where the run of that name stopped.

    Alone it brings its own Ray and Prefect; where `lora-rl up` has been called, or RAY_ADDRESS and PREFECT_API_URL are
    set, it uses those.
    """
    checked = _load(config, run_name, store, set_)
    console = Console()
    if dry_run:
        _print_plan(console, checked)
        return
    from lora_rl.preflight import check_run

    with console.status("checking model, data, reward, store and memory"):
        check_run(checked)
    records = RunRecords(open_store(checked.store), str(checked.run_name))
    records.create_run(checked.model_dump(mode="json"), checked.sha256)
    result = _execute(console, checked, records)
    console.print(
        f"adapter {result['adapter']['name']}@{result['adapter']['version']}: {result['uri']}", soft_wrap=True
    )


def _load(path: Path, run_name: str | None, store: str | None, overrides: list[str]) -> RunConfig:
    given = [f"run_name={run_name}"] if run_name else []
    given += [f"store.uri={store}"] if store else []
    return load_config(path, [*overrides, *given])


def _print_plan(console: Console, config: RunConfig) -> None:
    console.print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), markup=False, highlight=False)
    records = RunRecords(open_store(config.store), str(config.run_name))
    done = records.first_uncommitted() if records.run_document() else 0
    samples = config.sampling.rollout_batch_size * config.sampling.n_samples_per_prompt
    console.print(f"plan: iterations {done} to {config.iterations - 1} of {config.run_name} in {config.store.uri}")
    console.print(f"each: {' → '.join(STEPS)}; {samples} samples an optimizer step")


def _execute(console: Console, config: RunConfig, records: RunRecords) -> dict[str, Any]:
    from lora_rl.cluster import workstation

    os.environ.update(workstation.QUIET)
    for name, value in QUIET_CONSOLE.items():
        os.environ.setdefault(name, value)
    station = workstation.current_workstation()
    with ExitStack() as cleanup:
        if station is not None:
            workstation.use_workstation(station)
        if "PREFECT_API_URL" not in os.environ:
            with console.status("starting Prefect"):
                os.environ["PREFECT_API_URL"] = cleanup.enter_context(workstation.private_prefect_server())
        with console.status("joining Ray"):
            from lora_rl import cluster

            cluster.connect()
            cleanup.callback(cluster.disconnect)
        # Prefect reads its settings when it is imported
        from flows.train import train
        from lora_rl.cli.progress import show_progress

        with show_progress(console, str(config.run_name), records, config.iterations):
            return asyncio.run(train(run=str(config.run_name), store=config.store.uri, iterations=config.iterations))
