"""What `lora-rl status` and `lora-rl adapter` read from the records of a run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lora_rl.config import load_config
from lora_rl.store import STEPS, RunRecords, open_store, promote_adapter
from tests.builders import make_adapter, make_step_record


@pytest.fixture
def records(tiny: Path) -> RunRecords:
    """Run `tiny`, recorded and not begun, in the default store."""
    config = load_config(tiny)
    records = RunRecords(open_store(config.store), "tiny")
    records.create_run(config)
    return records


@pytest.fixture
def committed(tiny: Path, records: RunRecords) -> RunRecords:
    """The same after its start and two iterations; version n + 1 of the adapter follows iteration n."""
    store = open_store(load_config(tiny).store)
    steps = {step: {"state": "committed", "seconds": 1.5, "executions": 1} for step in STEPS}
    for it in (-1, 0, 1):
        adapter = make_adapter(store, version=it + 1).to_json()
        document = {"it": it, "adapter": adapter, "reward_mean": 0.25, "metrics": {}, "steps": steps}
        records.commit_iteration(it, document)
    return records


def test_run_that_has_not_begun_has_no_adapter_to_give(cli, records, folder) -> None:
    ended = cli("adapter", "tiny", "--out", "peft")
    assert ended.status == 2
    assert "tiny has no committed iteration yet" in ended.text
    assert not (folder / "peft").exists()


@pytest.mark.parametrize("iteration", ["2", "-2", "99999"])
def test_iteration_that_does_not_exist_is_refused_with_those_there_are(cli, committed, folder, iteration) -> None:
    ended = cli("adapter", "tiny", "--out", "peft", "--iteration", iteration)
    assert ended.status == 2
    assert f"--iteration: {iteration} is not committed; tiny has iterations 0 to 1" in ended.text
    assert not (folder / "peft").exists()


@pytest.mark.parametrize(("option", "version"), [([], 2), (["--iteration", "0"], 1), (["--iteration", "-1"], 0)])
def test_adapter_of_an_iteration_is_written(cli, committed, folder, option, version) -> None:
    ended = cli("adapter", "tiny", "--out", "peft", *option)
    assert ended.status == 0
    assert ended.out.startswith(f"default@{version} ")
    assert (folder / "peft" / "adapter_model.safetensors").read_bytes() == f"weights of version {version}".encode()


def test_folder_that_holds_anything_else_is_not_overwritten(cli, committed, folder) -> None:
    (folder / "peft").mkdir()
    (folder / "peft" / "notes.txt").write_text("mine")
    ended = cli("adapter", "tiny", "--out", "peft")
    assert ended.status == 2
    assert "is not an empty folder" in ended.text
    assert [path.name for path in (folder / "peft").iterdir()] == ["notes.txt"]


def test_out_below_a_file_is_refused(cli, committed, folder) -> None:
    (folder / "file").write_text("mine")
    ended = cli("adapter", "tiny", "--out", "file/peft")
    assert ended.status == 2
    assert "--out: " in ended.text
    assert "file/peft cannot be written" in ended.text


def test_status_tells_states_seconds_and_executions(cli, tiny, committed) -> None:
    committed.begin_attempt(2, "rollout")
    committed.begin_attempt(2, "rollout")
    store = open_store(load_config(tiny).store)
    record = make_step_record(store)
    committed.commit_step(2, replace(record, seconds=2.5))
    committed.begin_attempt(2, "reward")
    report = json.loads(cli("status", "tiny", "--json").out)
    assert [iteration["it"] for iteration in report["iterations"]] == [0, 1, 2]
    under_way = report["iterations"][2]["steps"]
    assert under_way["rollout"] == {"state": "committed", "seconds": 2.5, "executions": 2}
    assert [under_way[step]["state"] for step in STEPS[1:]] == ["begun", "pending", "pending", "pending"]
    assert report["adapter"]["iteration"] == 1
    shown = cli("status", "tiny").text
    assert "2.5 s ×2" in shown
    assert "tiny: running, 2 of 3 iterations, last update 20" in shown
    assert "adapter after iteration 1: `lora-rl adapter tiny --out FOLDER` writes it" in shown
    promote_adapter(store, "tiny", make_adapter(store, version=2))
    assert "adapter after iteration 1: lora-rl-store/adapters/tiny/default" in cli("status", "tiny").text


def test_status_without_a_name_lists_the_runs(cli, committed) -> None:
    assert re.search(r"tiny │ running │ 2 of 3 +│ 0\.250 +│ 20\S+ \S+ UTC", cli("status").text)
    assert [run["run"] for run in json.loads(cli("status", "--json").out)] == ["tiny"]
    assert "no run in this store" in cli("status", "--store", "other").text


def test_the_yaml_file_stands_for_the_run_and_its_store(cli, tiny, folder) -> None:
    tiny.write_text(tiny.read_text() + "store: {uri: mine}\n")
    config = load_config(tiny)
    assert config.store.uri.endswith("/mine")
    RunRecords(open_store(config.store), "tiny").create_run(config)
    assert json.loads(cli("status", tiny, "--json").out)["run"] == "tiny"
    assert "tiny has no committed iteration yet" in cli("adapter", "tiny.yaml", "--out", "peft").text
    assert "no run 'tiny' in file://" in cli("status", tiny, "--store", "other").text
    assert "none.yaml: cannot be read" in cli("status", "none.yaml").text


def test_status_of_a_run_that_has_not_begun_is_empty(cli, records) -> None:
    report = json.loads(cli("status", "tiny", "--json").out)
    assert (report["iterations"], report["adapter"]) == ([], None)
    assert cli("status", "tiny").status == 0
