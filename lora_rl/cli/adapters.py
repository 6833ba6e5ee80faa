"""`lora-rl adapter`."""

from pathlib import Path
from typing import Annotated

import typer

from lora_rl.cli.options import RunName, StoreUri, open_run
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import AdapterRef, download_adapter


def adapter(
    run: RunName,
    out: Annotated[Path, typer.Option(help="Directory to write; must not hold anything else.")],
    iteration: Annotated[
        int | None, typer.Option(help="Iteration after which to take it; the last by default.")
    ] = None,
    store: StoreUri = None,
) -> None:
    """Writes a run's adapter as a PEFT directory."""
    artifacts, records, run = open_run(run, store)
    done = records.first_uncommitted()
    wanted = done - 1 if iteration is None else iteration
    commit = records.iteration_commit(wanted) if -1 <= wanted < done else None
    if commit is None:
        raise ConfigError(f"--iteration: {_lacks(run, wanted, done)}")
    ref = AdapterRef.from_json(commit["adapter"])
    if not artifacts.has_blob(ref.weights):
        raise ConfigError(
            f"--iteration: the adapter after iteration {wanted} of {run} is no longer in {artifacts.uri()}, "
            "`lora-rl prune` deletes old ones; the last one is there"
        )
    try:
        download_adapter(artifacts, ref, out)
    except StoreError:
        raise
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); give another folder") from error
    print(f"{ref.label} ({ref.digest[:12]}) in {out}")


def _lacks(run: str, wanted: int, done: int) -> str:
    if done == 0:
        return f"{run} has no committed iteration yet; go on with `lora-rl run`"
    return f"{wanted} is not committed; {run} has iterations 0 to {done - 1}, and -1 for its start"
