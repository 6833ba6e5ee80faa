"""`lora-rl up` and `lora-rl down`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lora_rl.cli.options import PrefectPort, RayPort
from lora_rl.cli.terminal import terminal
from lora_rl.config import RunConfig, load_config


def up(
    config: Annotated[Path | None, typer.Argument(help="Start the actors of this config too.")] = None,
    prefect_port: PrefectPort = 4200,
    ray_port: RayPort = 6379,
) -> None:
    """Starts a Prefect server, a Ray head and the deployments here, all on loopback. Runs then reuse the actors."""
    from lora_rl.cluster import workstation
    from lora_rl.cluster.token import token_file

    console = terminal()
    checked = _checked(config) if config else None
    with console.status("starting Prefect, Ray and the deployments"):
        station = workstation.up(ray_port=ray_port, prefect_port=prefect_port)
    console.print(f"Prefect UI  {station.prefect_api_url.removesuffix('/api')}", soft_wrap=True)
    console.print(f"            asks once for a password: the text in {token_file()}", soft_wrap=True)
    console.print(f"Ray head    {station.ray_address}")
    if checked:
        workstation.use_workstation(station)
        with console.status("starting the actors"):
            asyncio.run(_start_actors(checked, station.ray_address))
        console.print(f"actors      ready for {checked.model.name}")
    console.print("`lora-rl run CONFIG` uses them; `lora-rl down` ends them.")


def _checked(path: Path) -> RunConfig:
    from lora_rl.preflight import check_run, make_importable

    config = load_config(path)
    make_importable(path.absolute().parent)
    return check_run(config)


async def _start_actors(config: RunConfig, ray_address: str) -> None:
    from lora_rl.cluster import roles
    from lora_rl.cluster.connect import connect, disconnect
    from lora_rl.models import resolve_model

    connect(ray_address)
    model_path = resolve_model(config.model.name)
    try:
        await roles.start_all(config, model_path)
    finally:
        disconnect()


def down() -> None:
    """Ends what `lora-rl up` started, and nothing else."""
    from lora_rl.cluster import workstation

    ended = workstation.down()
    print(f"ended {', '.join(ended)}" if ended else "nothing was up")
