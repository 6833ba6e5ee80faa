"""`lora-rl models`."""

from typing import Annotated

import typer
from rich.table import Table

from lora_rl.cli.terminal import terminal
from lora_rl.models import list_models, resolve_model

app = typer.Typer(help="Base models that can be made on this machine.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """The models known by name, and whether they are here."""
    table = Table("name", "here", "what it is")
    for model in list_models():
        table.add_row(model.name, "yes" if model.present else "no", model.text)
    terminal().print(table)


@app.command("get")
def get(name: Annotated[str, typer.Argument(help="A name from `lora-rl models list`, or a directory.")]) -> None:
    """Makes a model ready and prints its directory."""
    print(resolve_model(name))
