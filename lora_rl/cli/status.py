"""`lora-rl status`."""

import json
from typing import Annotated

import typer
from rich.table import Table

from lora_rl.cli.options import RunName, StoreUri, open_run
from lora_rl.cli.terminal import terminal
from lora_rl.store import STEPS
from lora_rl.tracking import run_status


def status(
    run: RunName,
    store: StoreUri = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What a run has done: each step's state, seconds and executions, and the adapter it has reached."""
    report = run_status(*open_run(run, store), run)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    table = Table("it", "reward", *STEPS, title=f"{run}  (config {report['config_sha256'][:12]})")
    for iteration in report["iterations"]:
        reward = iteration["reward_mean"]
        table.add_row(
            str(iteration["it"]),
            "" if reward is None else f"{reward:.3f}",
            *(_cell(iteration["steps"][s]) for s in STEPS),
        )
    console = terminal()
    console.print(table)
    if report["adapter"]:
        console.print(
            f"adapter after iteration {report['adapter']['iteration']}: {report['adapter']['uri']}", soft_wrap=True
        )


def _cell(step: dict) -> str:
    if step["state"] != "committed":
        return step["state"]
    again = f" ×{step['executions']}" if step["executions"] > 1 else ""
    return f"{step['seconds']:.1f} s{again}"
