"""`lora-rl prune`."""

import time
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from lora_rl.cli.options import StoreUri, store_config
from lora_rl.cli.terminal import shown_uri, terminal
from lora_rl.errors import ConfigError
from lora_rl.store import ArtifactStore, open_store
from lora_rl.store.prune import Prunable, Thinning, prunable
from lora_rl.store.prune import prune as delete
from lora_rl.tracking import run_names


def prune(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Names of the runs that lose checkpoints; all runs where none is named.")
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, help="Also delete checkpoints: of each run all but those of its last so many iterations."),
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, help="With --keep-last: also keep those of every n-th iteration.")
    ] = None,
    store: StoreUri = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it nothing is deleted, only shown.")] = False,
) -> None:
    """Deletes what a store can do without: blobs that no record refers to and, if wanted, old checkpoints.

    A checkpoint is an iteration's train state and adapter: without it no fork can start there.

    Samples, metrics and promoted adapters stay, and every run can go on. Blobs younger than a day are left alone.
    """
    artifacts = open_store(store_config(store))
    thinning = _thinning(artifacts, runs, keep_last, keep_every)
    console = terminal(stderr=True)
    with console.status("reading the records"):
        found = prunable(artifacts, thinning, now=time.time())
    _print(found)
    if not found.blobs:
        terminal().print(f"nothing can be deleted in {shown_uri(artifacts.uri())}", soft_wrap=True)
        return
    if not yes:
        terminal().print(f"nothing is deleted yet in {shown_uri(artifacts.uri())}: add --yes", soft_wrap=True)
        return
    deleting = delete(artifacts, found.blobs)
    gone = sum(track(deleting, "deleting", total=len(found.blobs), console=console, transient=True))
    terminal().print(f"deleted {gone} blobs in {shown_uri(artifacts.uri())}", soft_wrap=True)


def _thinning(
    store: ArtifactStore, runs: list[str] | None, keep_last: int | None, keep_every: int | None
) -> Thinning | None:
    if keep_last is None and (runs or keep_every is not None):
        raise ConfigError(
            f"{'run' if runs else '--keep-every'}: has no effect without --keep-last, the number of checkpoints that "
            "stay; give it too"
        )
    if runs and (unknown := set(runs) - set(known := run_names(store))):
        raise ConfigError(f"run: {', '.join(sorted(unknown))} not in the store; there: {', '.join(known) or 'none'}")
    return None if keep_last is None else Thinning(runs=runs or None, keep_last=keep_last, keep_every=keep_every)


def _print(found: Prunable) -> None:
    if found.iterations:
        table = Table("run", "iterations that lose their checkpoint")
        for run, count in found.iterations.items():
            table.add_row(run, str(count))
        terminal().print(table)
    table = Table("", "blobs", "size")
    for name, blobs in (("can be deleted", found.blobs), ("stay", found.kept)):
        table.add_row(name, str(len(blobs)), decimal(sum(blob.size for blob in blobs)))
    terminal().print(table)
