"""`lora-rl run` up to the point where it would allocate something."""

import socket
import subprocess

import pytest
import yaml

from lora_rl.config import check_config, load_config
from lora_rl.config.run import changes_of_result
from tests.builders import make_peft_directory


def test_dry_run_prints_config_and_plan_and_allocates_nothing(cli, tiny, folder, monkeypatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        pytest.fail(f"a dry run started or reached {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    ended = cli("run", tiny, "--dry-run", "--set", "adapter.rank=2", "--run-name", "mine", "--store", "kept")
    assert ended.status == 0
    printed, _, plan = ended.out.partition("plan: ")
    resolved = check_config(yaml.safe_load(printed))
    assert (resolved.adapter.rank, resolved.run_name, resolved.store.uri) == (2, "mine", f"file://{folder}/kept")
    assert changes_of_result(resolved, load_config(tiny, ["adapter.rank=2"])) == []
    assert plan.startswith(f"run mine to iteration 3 in file://{folder}/kept\n")
    assert "rollout → reward → train_step → export_adapter → hot_load; 16 samples for one optimizer step" in plan
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yaml"]
    assert not (folder.parent / "home").exists()


def test_dry_run_shows_what_the_adapter_to_start_from_decides(cli, tiny, folder) -> None:
    make_peft_directory(folder / "before", r=3, lora_alpha=5)
    printed, _, _ = cli("run", tiny, "--dry-run", "--set", "adapter={init: before}").out.partition("plan: ")
    adapter = yaml.safe_load(printed)["adapter"]
    assert (adapter["rank"], adapter["alpha"], adapter["rslora"]) == (3, 5.0, False)
    assert adapter["target_modules"] == ["q_proj", "down_proj"]
    assert adapter["init"] == str(folder / "before")
    ended = cli("run", tiny, "--dry-run", "--set", "adapter={init: before, rank: 4}")
    assert ended.status == 2
    assert "adapter.rank: 4, but 3 in adapter.init" in ended.text


def test_option_wins_over_variable_and_override_wins_over_file(cli, tiny, folder, monkeypatch) -> None:
    monkeypatch.setenv("LORA_RL_STORE", "from-variable")
    assert f"in file://{folder}/from-variable\n" in cli("run", tiny, "--dry-run").out
    assert f"in file://{folder}/given\n" in cli("run", tiny, "--dry-run", "--store", "given").out
    assert f"in file://{folder}/set\n" in cli("run", tiny, "--dry-run", "--set", "store.uri=set").out
    assert "iterations: 9\n" in cli("run", tiny, "--dry-run", "--set", "iterations=9").out
    assert "plan: run tiny to iteration 3 " in cli("run", tiny, "--dry-run").out


def test_dry_run_of_a_run_that_exists_leaves_its_records_alone(cli, tiny, folder) -> None:
    store = folder / "lora-rl-store" / "runs" / "tiny"
    store.mkdir(parents=True)
    (store / "run.json").write_text("{}")
    assert cli("run", tiny, "--dry-run").status == 0
    assert (store / "run.json").read_text() == "{}"


@pytest.mark.parametrize("command", ["run", "up", "down", "status", "adapter", "doctor", "models"])
def test_every_command_explains_itself(cli, command) -> None:
    ended = cli(command, "--help")
    assert ended.status == 0
    assert f"lora-rl {command}" in ended.out
