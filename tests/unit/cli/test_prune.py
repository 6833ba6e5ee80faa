"""`lora-rl prune`: it says what it would delete, and deletes when it is told to."""

import os
import time
from pathlib import Path

import pytest

from lora_rl.config import load_config
from lora_rl.store import START, AdapterRef, RunRecords, open_store
from lora_rl.store.prune import GRACE_S


@pytest.fixture
def old(tiny: Path) -> list[Path]:
    """The blobs of a run of two iterations, all of them old."""
    run = load_config(tiny)
    store = open_store(run.store)
    records = RunRecords(store, "tiny")
    records.create_run(run)
    for it in (START, 0, 1):
        state = store.put_blob("state", f"state after {it}".encode()).to_json()
        weights, config, probe = (store.put_blob("adapter", data) for data in (f"after {it}".encode(), b"{}", b"[]"))
        adapter = AdapterRef(name="tiny", version=it + 1, weights=weights, config=config, probe=probe)
        records.commit_iteration(it, {"state": state, "adapter": adapter.to_json()})
    blobs = [path for path in Path(run.store.uri.removeprefix("file://"), "cas").rglob("*") if path.is_file()]
    then = time.time() - GRACE_S - 60
    for path in blobs:
        os.utime(path, (then, then))
    return blobs


def left(blobs: list[Path]) -> int:
    return sum(path.exists() for path in blobs)


def test_it_deletes_only_when_told_to_and_only_once(cli, old) -> None:
    ended = cli("prune", "--keep-last", "1")
    assert ended.status == 0
    assert "│ tiny │ 1" in ended.text
    assert "can be deleted │ 2 │" in ended.text
    assert "nothing is deleted yet in lora-rl-store: add --yes" in ended.text
    assert left(old) == len(old)
    ended = cli("prune", "--keep-last", "1", "--yes")
    assert "deleted 2 blobs in lora-rl-store" in ended.text
    assert left(old) == len(old) - 2
    ended = cli("prune", "--keep-last", "1", "--yes")
    assert ended.status == 0
    assert "can be deleted │ 0 │" in ended.text
    assert "nothing can be deleted in lora-rl-store" in ended.text
    assert left(old) == len(old) - 2


def test_without_a_number_no_checkpoint_goes(cli, old) -> None:
    assert cli("prune", "--yes").status == 0
    assert left(old) == len(old)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep-every", "2"], "--keep-every: has no effect without --keep-last"),
        (["tiny"], "run: has no effect without --keep-last"),
        (["none", "--keep-last", "1"], "run: none not in the store; there: tiny"),
        (["--keep-last", "0"], "greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(cli, old, arguments, text) -> None:
    ended = cli("prune", *arguments, "--yes")
    assert ended.status == 2
    assert text in ended.text
    assert left(old) == len(old)


def test_adapter_that_was_deleted_is_told_from_one_that_never_was(cli, old, folder) -> None:
    cli("prune", "--keep-last", "1", "--yes")
    ended = cli("adapter", "tiny", "--out", "peft", "--iteration", "0")
    assert ended.status == 2
    assert "--iteration: the adapter after iteration 0 of tiny is no longer in" in ended.text
    assert not (folder / "peft").exists()
    assert cli("adapter", "tiny", "--out", "peft").status == 0
