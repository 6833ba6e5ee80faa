"""Runs from the command line on one workstation: reuse, going on, cancelling, what Prefect shows, what leaks."""

import base64
import json
import os
import subprocess
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.silence import NAME, silent_runs_crashed
from lora_rl.config import StoreConfig
from lora_rl.store import STEPS, open_store
from lora_rl.store.prune import GRACE_S
from tests.integration.cli.conftest import PROGRAM, TINY, records_of
from tests.processes import actor_pids, wait_until
from tests.s3 import SECRET_KEY
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

CANCEL_S = 120.0
"""Within this a cancelled run has ended; 5 s measured."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('store')}"


@pytest.fixture(scope="module")
def silent(cluster_environment) -> str:
    """Id of a flow run whose driver died after its first heartbeat, on a server that waits for 10 s only."""

    def post(what: str, document: Any) -> Any:
        return prefect_api(cluster_environment).post(what, json=document).raise_for_status()

    flow = post("flows", {"name": "silent"}).json()["id"]
    run = post("flow_runs", {"flow_id": flow, "state": {"type": "RUNNING"}}).json()["id"]
    automation = silent_runs_crashed(timedelta(seconds=10)).model_dump(mode="json", exclude={"id"})
    automation["name"] = "silent"
    automation["trigger"]["match"] = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    post("automations", automation)
    heartbeat = {
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
        "occurred": datetime.now(UTC).isoformat(),
        "id": str(uuid.uuid4()),
    }
    post("events", [heartbeat])
    return run


@pytest.fixture(scope="module")
def first(cli, store: str, silent: str) -> dict[str, int]:
    """The actors after a run of one iteration, named `first`."""
    cli("run", TINY, "--run-name", "first", "--set", "iterations=1", "--store", store)
    return actor_pids()


def prefect_api(environment: dict[str, str]) -> httpx.Client:
    """A client of the workstation's Prefect server, which asks for the token."""
    shown = base64.b64encode(environment["PREFECT_API_AUTH_STRING"].encode()).decode()
    return httpx.Client(
        base_url=environment["PREFECT_API_URL"],
        headers={"Authorization": f"Basic {shown}"},
        timeout=120,
        follow_redirects=True,
    )


def prefect(environment: dict[str, str], what: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    return prefect_api(environment).post(f"{what}/filter", json=query).raise_for_status().json()


def last_flow_run(environment: dict[str, str], name: str) -> dict[str, Any]:
    query = {"flow_runs": {"name": {"any_": [name]}}, "sort": "START_TIME_DESC"}
    return prefect(environment, "flow_runs", query)[0]


def start(environment: dict[str, str], deployment: str, **parameters: Any) -> str:
    """Id of a flow run of the deployment, to begin at once."""
    api, name = prefect_api(environment), f"deployments/name/{deployment}/{deployment}"
    wait_until(lambda: api.get(name).is_success, f"deployment {deployment}", deadline_s=300)
    url = f"deployments/{api.get(name).json()['id']}/create_flow_run"
    return api.post(url, json={"parameters": parameters}).raise_for_status().json()["id"]


def end_of(environment: dict[str, str], flow_run: str, runs: int = 1) -> dict[str, Any]:
    """The flow run when it has ended for the `runs`-th time."""
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        found[:] = prefect(environment, "flow_runs", {"flow_runs": {"id": {"any_": [flow_run]}}})
        return found[0]["run_count"] == runs and found[0]["state_type"] in ("COMPLETED", "FAILED", "CRASHED")

    wait_until(ended, f"end of {flow_run}", deadline_s=600)
    return found[0]


def task_states(environment: dict[str, str], flow_run_name: str) -> list[tuple[str, str]]:
    """(task, name of its state) of the flow run's tasks, in the order they began, once all have ended."""
    query = {"flow_runs": {"id": {"any_": [last_flow_run(environment, flow_run_name)["id"]]}}}
    runs: list[dict[str, Any]] = []

    def ended() -> bool:
        runs[:] = prefect(environment, "task_runs", query)
        return len(runs) >= 6 and all(run["end_time"] for run in runs)

    wait_until(ended, "Prefect has heard of every task's end")
    return [(run["name"], run["state_name"]) for run in sorted(runs, key=lambda run: run["start_time"])]


def test_second_run_finds_the_actors_of_the_first(cli, store, first) -> None:
    assert len(first) == 3
    begun = time.time()
    cli("run", TINY, "--run-name", "second", "--set", "iterations=1", "--store", store)
    assert actor_pids() == first
    rollout = records_of("second", store).step_record(0, "rollout")
    assert rollout is not None
    waited = datetime.fromisoformat(rollout.started).timestamp() - begun
    print(f"first rollout after {waited:.1f} s")


def test_an_iteration_shows_its_tasks_and_artifacts(cluster_environment, first) -> None:
    assert task_states(cluster_environment, "first/it0") == [
        ("hot_load", "Completed"),
        *((step, "Completed") for step in STEPS),
    ]
    keys = ["first-iteration", "first-reward-curve", "first-timeline"]
    found = prefect(cluster_environment, "artifacts", {"artifacts": {"key": {"any_": keys}}})
    assert {artifact["key"] for artifact in found} == set(keys)
    assert last_flow_run(cluster_environment, "first")["state_type"] == "COMPLETED"


def test_run_goes_on_and_then_reuses_what_is_committed(cli, cluster_environment, store, first) -> None:
    records = records_of("first", store)
    before = records.iteration_commit(0)
    ended = cli("run", TINY, "--run-name", "first", "--set", "iterations=2", "--store", store)
    assert records.first_uncommitted() == 2
    assert records.iteration_commit(0) == before
    assert {step: records.attempts(0, step) for step in STEPS} == dict.fromkeys(STEPS, 1)
    assert "adapters/first/tiny" in ended.text

    commit = Path(store.removeprefix("file://"), "runs", "first", "it00001", "COMMIT.json")
    made = json.loads(commit.read_text())
    commit.unlink()
    cli("run", TINY, "--run-name", "first", "--set", "iterations=2", "--store", store)
    states = task_states(cluster_environment, "first/it1")
    assert states[1:5] == [(step, "Reused") for step in STEPS[:4]]
    assert states[5] == ("hot_load", "InSync")
    assert {step: records.attempts(1, step) for step in STEPS} == dict.fromkeys(STEPS, 1)
    assert json.loads(commit.read_text()) | {"committed": None} == made | {"committed": None}

    promoted = Path(store.removeprefix("file://"), "adapters", "first", "tiny", "manifest.json")
    assert json.loads(promoted.read_text())["version"] == 2
    ended = cli("run", TINY, "--run-name", "first", "--set", "iterations=1", "--store", store, status=2)
    assert "iterations: 1, but 2 of first are committed" in ended.text
    assert json.loads(promoted.read_text())["version"] == 2


def test_pruned_run_goes_on_from_what_is_left(cli, store, first) -> None:
    def go_on(iterations: int) -> None:
        seed, wanted = ("--set", "seed=5"), ("--set", f"iterations={iterations}")
        cli("run", TINY, "--run-name", "pruned", *seed, *wanted, "--store", store)

    go_on(2)
    for path in Path(store.removeprefix("file://"), "cas").rglob("*"):
        os.utime(path, (time.time() - 2 * GRACE_S,) * 2)
    ended = cli("prune", "pruned", "--keep-last", "1", "--yes", "--store", store)
    assert "deleted 3 blobs" in ended.text  # state, weights and probe of iteration 0; all versions have one config
    records = records_of("pruned", store)
    before = records.iteration_commit(1)
    go_on(3)
    assert records.first_uncommitted() == 3
    assert records.iteration_commit(1) == before
    fork = cli("run", TINY, "--run-name", "fork", "--fork", "pruned@0", "--store", store, status=2)
    assert "--fork: the state after iteration 0 of pruned is no longer in" in fork.text


def test_status_and_adapter_show_what_the_run_did(cli, store, first, tmp_path) -> None:
    report = json.loads(cli("status", "second", "--store", store, "--json").text)
    assert [iteration["steps"]["rollout"]["executions"] for iteration in report["iterations"]] == [1]
    assert "committed" in {step["state"] for step in report["iterations"][0]["steps"].values()}
    cli("adapter", "second", "--store", store, "--out", tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    }
    missing = cli("adapter", "second", "--store", store, "--out", tmp_path / "none", "--iteration", "7", status=2)
    assert "7 is not committed; second has iterations 0 to 0" in missing.text
    assert not (tmp_path / "none").exists()


def test_cancelled_run_ends_within_seconds_and_goes_on_later(cli, cluster_environment, store, first, tmp_path) -> None:
    command = [PROGRAM, "run", str(TINY), "--run-name", "cancelled", "--store", store]
    output = tmp_path / "output"
    with output.open("wb") as file:
        driver = subprocess.Popen(command, env=cluster_environment, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT)
    records = records_of("cancelled", store)
    wait_until(lambda: records.step_record(0, "rollout") is not None, "rollout", deadline_s=300)
    driver.terminate()
    begun = time.monotonic()
    status = driver.wait(timeout=CANCEL_S)
    print(f"ended {time.monotonic() - begun:.1f} s after SIGTERM with {status}")
    text = output.read_text()
    assert status != 0
    assert "Traceback" not in text, text[-3000:]
    assert last_flow_run(cluster_environment, "cancelled")["state_type"] not in ("RUNNING", "COMPLETED")
    cli("run", TINY, "--run-name", "cancelled", "--set", "iterations=1", "--store", store)
    assert records.attempts(0, "rollout") == 1


def test_nightly_run_has_its_date_and_is_not_done_twice(cluster_environment, store, first, tmp_path) -> None:
    grader = "{name: 'my_grader:grade'}"
    (tmp_path / "my_grader.py").write_text(
        "def grade(sample):\n"
        "    if len(sample.response_text) % 2:\n"
        "        raise RuntimeError('odd')\n"
        "    return float(len(sample.response_text))\n"
    )
    config = tmp_path / "raising.yaml"
    config.write_text(TINY.read_text())
    overrides = ["iterations=1", f"reward.terms=[{grader}]", f"store.uri={store}"]
    night = start(cluster_environment, "nightly", config=str(config), overrides=overrides)
    ended = end_of(cluster_environment, night)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    run = f"raising-{ended['expected_start_time'][:10].replace('-', '')}"
    records = records_of(run, store)
    commit = records.iteration_commit(0)
    assert commit is not None
    assert commit["metrics"]["reward/errors"] > 0

    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    prefect_api(cluster_environment).post(f"flow_runs/{night}/set_state", json=retry).raise_for_status()
    again = start(cluster_environment, "train", run=run, store=store, iterations=1)
    records.pin_start(again, 0)  # as if it had committed iteration 0 itself before a failure
    for flow_run, runs in ((night, 2), (again, 1)):
        ended = end_of(cluster_environment, flow_run, runs)
        assert ended["state_type"] == "COMPLETED", ended["state"]
    assert last_flow_run(cluster_environment, f"{run}/it0")["state_name"] == "Reused"
    assert {step: records.attempts(0, step) for step in STEPS} == dict.fromkeys(STEPS, 1)


def test_run_whose_driver_fell_silent_is_marked_as_crashed(cluster_environment, first, silent) -> None:
    ended = end_of(cluster_environment, silent, runs=1)
    assert ended["state_type"] == "CRASHED"
    assert "no heartbeat for 10 s" in ended["state"]["message"]
    registered = prefect(cluster_environment, "automations", {"automations": {"name": {"any_": [NAME]}}})
    assert [automation["trigger"]["within"] for automation in registered] == [540.0]


def test_no_secret_is_kept_anywhere(cli, cluster_environment, s3_store_uri, first) -> None:
    store = f"{s3_store_uri}/secrets"
    ended = cli("run", TINY, "--run-name", "secrets", "--set", "iterations=1", "--store", store)
    objects = open_store(StoreConfig(uri=store))
    kept = {"output": ended.text.encode()}
    for variable in ("PREFECT_HOME", "LORA_RL_HOME"):
        for folder, _, files in os.walk(cluster_environment[variable]):
            for path in (Path(folder, name) for name in files):
                with suppress(FileNotFoundError):  # the database's journals come and go
                    if "models" not in path.parts:
                        kept[str(path)] = path.read_bytes()
    for key in objects.list("runs"):
        kept[key] = json.dumps(objects.read(key)).encode() if key.endswith(".json") else b""
    assert any(name.endswith("prefect.db") for name in kept)
    assert any(name.endswith("COMMIT.json") for name in kept)
    assert [name for name, content in kept.items() if SECRET_KEY.encode() in content] == []
    token = cluster_environment["PREFECT_API_AUTH_STRING"].encode()
    assert [Path(name).name for name, content in kept.items() if token in content] == ["ray-token"]


@pytest.mark.parametrize(
    ("variable", "address"),
    [("RAY_ADDRESS", "127.0.0.1:1"), ("PREFECT_API_URL", "http://user:hidden@127.0.0.1:1/api")],
    ids=lambda value: value[:3],
)
def test_address_where_nothing_answers_is_an_error_that_names_it(cli, store, variable, address) -> None:
    ended = cli("run", TINY, "--run-name", "nowhere", "--store", store, status=1, **{variable: address})
    assert f"{variable}: no " in ended.text
    assert "127.0.0.1:1" in ended.text
    assert "hidden" not in ended.text
    print(f"{variable}: refused after {ended.seconds:.1f} s")


def test_engine_and_trainer_of_two_processes_each_learn_in_turns(cli, store) -> None:
    split = ("placement.mode=colocated", "engine.tensor_parallel=2", "trainer.tensor_parallel=2", "iterations=1")
    changes = [argument for change in split for argument in ("--set", change)]
    cli("run", TINY, "--run-name", "split", "--store", store, *changes)
    commit = records_of("split", store).iteration_commit(0)
    assert commit["metrics"]["mismatch/logp_abs/mean"] < PARITY
    assert commit["metrics"]["policy/grad_norm"] > 0
