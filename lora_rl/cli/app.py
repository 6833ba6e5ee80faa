"""The commands, and how errors reach the user."""

import sys

import typer

from lora_rl.cli import adapters, doctor, models, prune, run, status, workstation
from lora_rl.cli.terminal import printable, terminal
from lora_rl.errors import ConfigError, DataError, LoraRlError

USAGE_ERROR = 2
FAILED = 1

app = typer.Typer(
    name="lora-rl",
    help="Reinforcement learning of LoRA adapters, as resumable workflows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("run")(run.run)
app.command("up")(workstation.up)
app.command("down")(workstation.down)
app.command("status")(status.status)
app.command("adapter")(adapters.adapter)
app.command("prune")(prune.prune)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")


def main() -> None:
    """Entry point: errors of ours are a text without a traceback; config and data errors exit with 2, others with 1."""
    try:
        app()
    except LoraRlError as error:
        terminal(stderr=True).print(printable(f"error: {error}"), style="red", soft_wrap=True)
        sys.exit(USAGE_ERROR if isinstance(error, ConfigError | DataError) else FAILED)
