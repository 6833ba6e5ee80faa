"""`lora-rl run`."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from lora_rl.cli.options import StoreUri
from lora_rl.cli.terminal import terminal
from lora_rl.config import RunConfig, load_config
from lora_rl.errors import ConfigError
from lora_rl.store import STEPS, Fork, RunRecords, open_store

if TYPE_CHECKING:
    from lora_rl.cluster.workstation import Workstation

QUIET_PREFECT = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
"""The progress display takes the terminal, and the error is said once; Prefect's server still gets every line."""


def run(
    config: Annotated[Path, typer.Argument(help="YAML file; see examples/.")],
    run_name: Annotated[str | None, typer.Option(help="Name in the store; the file's name by default.")] = None,
    store: StoreUri = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key.path=value, over the file; repeatable.")] = None,
    fork: Annotated[
        str | None, typer.Option(help="RUN@ITERATION of the same store: start from its state and place in the data.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all but the store; print the resolved config and the plan."),
    ] = False,
) -> None:
    """Runs CONFIG to its end, or goes on where the run of that name stopped.

    Alone it brings its own Ray and Prefect. Where `lora-rl up` has been called, or RAY_ADDRESS and PREFECT_API_URL are
    set, it uses those.
    """
    given = load_config(config, set_ or [], run_name=run_name, store=store)
    origin = _fork(fork) if fork is not None else None
    console = terminal()
    from lora_rl.cli.report import print_adapter, print_report
    from lora_rl.cluster.workstation import current_workstation
    from lora_rl.models import resolve_model
    from lora_rl.preflight import check_run, make_importable

    make_importable(config.absolute().parent)
    station = current_workstation()
    alone = station is None and "RAY_ADDRESS" not in os.environ
    with console.status("checking model, data, reward, store and memory"):
        checked = check_run(given, starts_actors=alone, writes=not dry_run)
    if dry_run:
        _print_plan(console, checked)
        return
    artifacts = open_store(checked.store)
    records = RunRecords(artifacts, str(checked.run_name))
    records.create_run(checked, origin)
    with console.status("making the model ready"):
        resolve_model(checked.model.name)
    result = _execute(console, checked, records, station)
    print_report(console, artifacts, records, str(checked.run_name), checked.iterations)
    print_adapter(console, result)


def _fork(text: str) -> Fork:
    run, _, iteration = text.rpartition("@")
    try:
        return Fork(run=run, iteration=int(iteration))
    except ValueError:
        raise ConfigError(f"--fork: {text!r} is not of the form RUN@ITERATION, such as quickstart@12") from None


def _print_plan(console: Console, config: RunConfig) -> None:
    console.print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    samples = config.sampling.rollout_batch_size * config.sampling.n_samples_per_prompt
    console.print(f"plan: run {config.run_name} to iteration {config.iterations} in {config.store.uri}", soft_wrap=True)
    console.print(f"each iteration: {' → '.join(STEPS)}; {samples} samples for one optimizer step")


def _execute(console: Console, config: RunConfig, records: RunRecords, station: "Workstation | None") -> dict[str, Any]:
    from lora_rl.cluster import workstation
    from lora_rl.cluster.token import token_environment

    os.environ.update(workstation.QUIET | QUIET_PREFECT)
    with ExitStack() as cleanup:
        if station is not None:
            workstation.use_workstation(station)
        elif "RAY_ADDRESS" not in os.environ:
            os.environ.update(token_environment())
        if "PREFECT_API_URL" in os.environ:
            workstation.require_prefect(os.environ["PREFECT_API_URL"])
        else:
            with console.status("starting Prefect"):
                os.environ.update(cleanup.enter_context(workstation.private_prefect_server()))
        with console.status("joining Ray"):
            from lora_rl.cluster.connect import connect, disconnect  # Ray reads its settings when it is imported

            connect()
            cleanup.callback(disconnect)
        # as Prefect does
        from flows.train import train_to_end
        from lora_rl.cli.progress import show_progress

        with show_progress(console, str(config.run_name), records, config.iterations):
            return train_to_end(str(config.run_name), config.store.uri, config.iterations)
