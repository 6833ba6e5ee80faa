"""`lora-rl status`."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from lora_rl.cli.options import StoreUri, open_run, store_config
from lora_rl.cli.terminal import shown_uri, terminal
from lora_rl.store import STEPS, open_store
from lora_rl.tracking import run_status, runs_overview


def status(
    run: Annotated[str | None, typer.Argument(help="Name of the run, or its YAML file; all runs without it.")] = None,
    store: StoreUri = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What a run has done: each step's state, seconds and executions, and the adapter it has reached.

    Without a name: the runs of the store.
    """
    if run is None:
        report = runs_overview(open_store(store_config(store)))
    else:
        artifacts, records, run = open_run(run, store)
        report = run_status(artifacts, records, run)
    if as_json:
        print(json.dumps(report, indent=2))
    elif isinstance(report, list):
        _print_runs(report)
    else:
        _print_run(report)


def _print_runs(runs: list[dict[str, Any]]) -> None:
    table = Table("run", "state", "iterations", "last reward", "updated")
    for run in runs:
        iterations = f"{run['iterations_done']} of {run['iterations_wanted']}"
        table.add_row(run["run"], run["state"], iterations, _reward(run["reward_mean"]), _time(run["updated"]))
    terminal().print(table if runs else "no run in this store")


def _print_run(report: dict[str, Any]) -> None:
    console = terminal()
    console.print(
        f"{report['run']}: {report['state']}, {report['iterations_done']} of {report['iterations_wanted']} iterations, "
        f"last update {_time(report['updated'])}",
        soft_wrap=True,
    )
    table = Table("it", "reward", *STEPS, title=f"{report['run']}  (config {report['config_sha256'][:12]})")
    for iteration in report["iterations"]:
        cells = (_cell(iteration["steps"][step]) for step in STEPS)
        table.add_row(str(iteration["it"]), _reward(iteration["reward_mean"]), *cells)
    console.print(table)
    adapter = report["adapter"]
    if adapter:
        command = f"`lora-rl adapter {report['run']} --out FOLDER` writes it"
        where = shown_uri(adapter["directory"]) if adapter["directory"] else command
        console.print(f"adapter after iteration {adapter['iteration']}: {where}", soft_wrap=True)


def _cell(step: dict[str, Any]) -> str:
    if step["state"] != "committed":
        return step["state"]
    again = f" ×{step['executions']}" if step["executions"] > 1 else ""
    return f"{step['seconds']:.1f} s{again}"


def _reward(reward: float | None) -> str:
    return "" if reward is None else f"{reward:.3f}"


def _time(iso: str) -> str:
    return f"{iso[:10]} {iso[11:19]} UTC"
