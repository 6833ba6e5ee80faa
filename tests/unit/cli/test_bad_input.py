"""Bad input gives field, value and mend, exit status 2 or 1, and leaves nothing behind."""

import json
import re
import socket
from pathlib import Path

import pytest

from lora_rl.config import load_config
from lora_rl.store import RunRecords, open_store
from tests.processes import free_ports
from tests.s3 import S3Process


@pytest.fixture
def rows(folder: Path) -> Path:
    """Prompt files, good and bad."""
    (folder / "good.jsonl").write_text('{"prompt": "1 + 1 = ", "answer": "2"}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text('{"prompt": \n')
    (folder / "raises.py").write_text("raise RuntimeError('on import')\n")
    (folder / "file").write_text("a regular file\n")
    return folder


def data(uri: str, **more: str) -> str:
    return "data=" + json.dumps({"type": "file", "uri": uri, **more})


RUN_FAULTS = {
    "unknown model": (["model.name=gpt-9"], "model.name: 'gpt-9' is neither a directory nor one of .*tiny-qwen3"),
    "directory without a model": (["model.name=."], r"model.name: .*lacks config\.json"),
    "no such data": ([data("none.jsonl")], "none.jsonl"),
    "empty data": ([data("empty.jsonl")], "data: .*empty.jsonl is empty; give data"),
    "broken data": ([data("broken.jsonl")], "broken.jsonl"),
    "missing column": ([data("good.jsonl", label_key="gold")], "data.label_key: 'gold' is not a column .*answer"),
    "unknown task": (["data.task=chain_sums"], "data.task: 'chain_sums' is unknown .*chain_sum"),
    "unknown target module": (["adapter.target_modules=[q_prj]"], "adapter.target_modules: 'q_prj' matches no"),
    "too little memory": (["engine.kv_cache_gib=100000"], "engine.kv_cache_gib: 100000 .* are free; lower it"),
    "unknown grader": (['reward.terms=[{name: "exactly"}]'], "reward.terms.0: exactly: no such grader; use one of"),
    "grader that does not import": (['reward.terms=[{name: "raises:f"}]'], "raises:f: .*RuntimeError: on import"),
    "module without the grader": (['reward.terms=[{name: "json:f"}]'], "json:f: json has no function f; correct"),
    "store below a file": (["store.uri=file/store"], "store.uri: .*a part of this path is a file; give a folder"),
}


@pytest.mark.parametrize(("overrides", "text"), RUN_FAULTS.values(), ids=RUN_FAULTS.keys())
def test_what_cannot_work_is_refused_before_anything_is_made(cli, tiny, rows, overrides, text) -> None:
    ended = cli("run", tiny, *(part for override in overrides for part in ("--set", override)))
    assert ended.status == 2, ended.text
    assert ended.text.startswith("error: tiny: 1 fault")
    assert re.search(text, ended.text), ended.text
    assert not (rows / "lora-rl-store" / "runs").exists()
    assert not (rows.parent / "home").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry"])
def test_all_faults_come_at_once(cli, tiny, rows, dry) -> None:
    ended = cli(
        *("run", tiny, "--set", "model.name=gpt-9", "--set", data("empty.jsonl"), "--store", "file/store"),
        *("--set", 'reward.terms=[{name: "raises:f"}]', "--set", "adapter.target_modules=[q_prj]", *dry),
    )
    fields = ["model.name", "data", "reward.terms.0", "adapter.target_modules", *([] if dry else ["store.uri"])]
    assert ended.status == 2
    assert ended.text.startswith(f"error: tiny: {len(fields)} faults")
    for field in fields:
        assert f" {field}: " in ended.text
    assert not (rows / "lora-rl-store").exists()


CONFIG_FAULTS = {
    "rank 0": ("adapter.rank=0", "adapter.rank: 0: .*greater than 0"),
    "rank 600": ("adapter.rank=600", "adapter.rank: 600 exceeds trainer.max_rank 8; lower it or raise"),
    "rank above the engine's": ("trainer.max_rank=600", "trainer.max_rank: 600 exceeds 512, vLLM's limit; lower it"),
    "unknown key": ("adapter.rnak=4", "adapter.rnak: unknown key; remove it or correct its name"),
    "name that leaves the store": ("run_name=../x", r"run_name: '\.\./x'"),
    "unknown kind of store": ("store.uri=ftp://host/x", "store.uri: 'ftp://host/x'"),
    "override without a value": ("seed", "--set 'seed': not of the form key.path=value"),
    "override without a key": ("=1", "--set '=1': not of the form key.path=value"),
    "override with a gap": ("adapter..rank=1", "--set 'adapter..rank=1': not of the form key.path=value"),
    "override below a value": ("seed.x=1", "--set 'seed.x=1': seed is not a section"),
    "override that is no YAML": ("adapter.name=[a", r"--set 'adapter.name=\[a': the value is not valid YAML"),
}


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry"])
@pytest.mark.parametrize(("override", "text"), CONFIG_FAULTS.values(), ids=CONFIG_FAULTS.keys())
def test_config_that_breaks_a_rule_is_refused(cli, tiny, folder, override, text, dry) -> None:
    ended = cli("run", tiny, "--set", override, *dry)
    assert ended.status == 2
    assert re.search(text, ended.text), ended.text
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, r"config\.yaml: cannot be read \(No such file"),
        (b"iterations: [1", r"config\.yaml: not valid YAML"),
        (b"\x80iterations: 1", r"config\.yaml: not valid YAML"),
        (b"\x00\x01", r"config\.yaml: not valid YAML"),
        (b"", r"config\.yaml: holds NoneType, not a mapping"),
        (b"- 1", r"config\.yaml: holds list, not a mapping"),
    ],
    ids=["missing", "broken", "no text", "control characters", "empty", "list"],
)
@pytest.mark.parametrize("command", ["run", "up"])
def test_file_that_is_no_config_is_refused(cli, folder, command, content, text) -> None:
    if content is not None:
        (folder / "config.yaml").write_bytes(content)
    ended = cli(command, "config.yaml")
    assert ended.status == 2
    assert re.search(text, ended.text), ended.text


def test_folder_as_config_is_refused(cli, folder) -> None:
    assert cli("run", folder).status == 2


def test_name_taken_by_another_config_shows_the_difference(cli, tiny, folder) -> None:
    config = load_config(tiny)
    records = RunRecords(open_store(config.store), "tiny")
    records.create_run(config)
    records.commit_iteration(0, {})
    before = records.run_document()
    ended = cli("run", tiny, "--set", "adapter.rank=8", "--set", "seed=7")
    assert ended.status == 2
    assert "run tiny: exists with another config" in ended.text
    assert "adapter.rank: 4 -> 8" in ended.text
    assert "seed: 0 -> 7" in ended.text
    assert "use another --run-name" in ended.text
    assert records.run_document() == before
    assert not (folder.parent / "home").exists()


@pytest.mark.parametrize("command", [["status", "nobody"], ["adapter", "nobody", "--out", "x"]], ids=lambda c: c[0])
def test_unknown_run_is_refused_with_those_there_are(cli, tiny, folder, command) -> None:
    ended = cli(*command)
    assert (ended.status, ended.out) == (2, "")
    assert "no run 'nobody' in file://" in ended.text
    assert "there is none" in ended.text
    config = load_config(tiny)
    RunRecords(open_store(config.store), "somebody").create_run(config)
    assert "there are somebody" in cli(*command).text
    assert not (folder / "x").exists()


@pytest.mark.parametrize("run", ["../x", "a/b", ".hidden", ""])
def test_name_of_no_run_is_refused(cli, run) -> None:
    assert cli("status", run).status == 2


@pytest.mark.parametrize("command", [["status", "x"], ["adapter", "x", "--out", "o"], ["doctor"]], ids=lambda c: c[0])
def test_unknown_kind_of_store_is_refused_by_every_command(cli, command) -> None:
    ended = cli(*command, "--store", "ftp://host/x")
    assert ended.status == 2
    assert "--store: 'ftp://host/x'" in ended.text


def test_a_secret_in_the_uri_of_the_store_is_refused_and_not_repeated(cli, tiny, monkeypatch) -> None:
    for command in (["status", "x"], ["adapter", "x", "--out", "o"], ["run", tiny, "--dry-run"]):
        ended = cli(*command, "--store", "s3://bob:hunter2@bucket/x")
        assert (ended.status, "hunter2" in ended.text) == (2, False)
    monkeypatch.setenv("LORA_RL_STORE", "ftp://bob:hunter2@host/x")
    ended = cli("status", "x")
    assert (ended.status, "hunter2" in ended.text) == (2, False)
    assert "LORA_RL_STORE: 'ftp://***@host/x' is neither" in ended.text


@pytest.mark.parametrize("fork", ["x", "x@", "@1", "x@last", "x@1"])
def test_fork_that_names_no_iteration_is_refused(cli, tiny, folder, fork) -> None:
    ended = cli("run", tiny, "--fork", fork)
    assert ended.status == 2
    assert "--fork: " in ended.text or "run name: ''" in ended.text
    assert not (folder / "lora-rl-store" / "runs").exists()


def test_store_below_a_file_is_an_error_of_the_store(cli, rows) -> None:
    ended = cli("status", "x", "--store", "file/store")
    assert ended.status == 1
    assert "a part of this path is a file; give a folder" in ended.text


@pytest.mark.parametrize("option", ["--prefect-port", "--ray-port"])
@pytest.mark.parametrize("port", ["0", "-1", "65536", "x"])
@pytest.mark.parametrize("command", ["up", "doctor"])
def test_number_that_is_no_port_is_refused(cli, folder, command, option, port) -> None:
    ended = cli(command, option, port)
    assert ended.status == 2
    assert option in ended.text


@pytest.mark.parametrize(("option", "other"), [("--prefect-port", "--ray-port"), ("--ray-port", "--prefect-port")])
def test_taken_port_is_refused_and_nothing_started(cli, folder, option, other) -> None:
    port, other_port = free_ports(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ended = cli("up", option, str(port), other, str(other_port))
    assert ended.status == 1
    assert f"{option}: port {port} is taken" in ended.text
    assert not (folder.parent / "home" / "logs").exists()


def test_one_port_for_both_servers_is_refused(cli) -> None:
    ended = cli("up", "--ray-port", "4200", "--prefect-port", "4200")
    assert ended.status == 1
    assert "--ray-port: 4200 is the --prefect-port too" in ended.text


def test_up_with_a_config_that_cannot_work_starts_nothing(cli, tiny, folder) -> None:
    tiny.write_text(tiny.read_text().replace("tiny-qwen3", "gpt-9"))
    ended = cli("up", tiny)
    assert ended.status == 2
    assert "model.name: 'gpt-9'" in ended.text
    assert not (folder.parent / "home").exists()


def test_down_with_nothing_up_says_so(cli) -> None:
    ended = cli("down")
    assert (ended.status, ended.out) == (0, "nothing was up\n")


def test_unknown_model_of_the_catalogue_is_refused(cli) -> None:
    ended = cli("models", "get", "gpt-9")
    assert ended.status == 2
    assert "'gpt-9' is neither a directory nor one of" in ended.text


@pytest.mark.integration
def test_wrong_credentials_are_an_error_without_a_secret(
    cli, tiny, s3_server: S3Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (s3_server.environment | {"AWS_SECRET_ACCESS_KEY": "not-the-secret-93f1"}).items():
        monkeypatch.setenv(name, value)
    for command, status in ((["run", tiny], 2), (["status", "x"], 1)):
        ended = cli(*command, "--store", "s3://lora-rl-test/wrong")
        assert ended.status == status
        assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in ended.text
        assert "93f1" not in ended.text
        assert s3_server.environment["AWS_SECRET_ACCESS_KEY"] not in ended.text
