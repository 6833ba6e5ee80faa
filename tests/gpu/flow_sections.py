"""The real flow over Ray and Prefect: its driver is killed, and the run goes on where it was."""

import os
import signal
import subprocess
import sys
import time

from lora_rl.cluster import workstation
from lora_rl.cluster.token import token_environment
from lora_rl.config import load_config
from lora_rl.store import STEPS, RunRecords, open_store
from tests.gpu.findings import Findings
from tests.gpu.scale import Scale
from tests.processes import actor_pids, free_ports
from tests.resume.conftest import ROOT

RUN, ITERATIONS, KILLED_IN = "check", 3, 1
DRIVER_DEADLINE_S = 210.0
QUICKSTART_ON_A_GPU = (
    "placement.mode=colocated",
    "engine.gpu_memory_utilization=0.2",
    "engine.gpu_kv_cache_gib=2",
    "engine.max_num_seqs=256",
    "trainer.max_tokens_per_gpu=16384",
)


def flow(found: Findings, scale: Scale) -> None:
    """Three iterations; kill -9 once iteration 1 has its train step; the same command again."""
    store = f"file://{scale.scratch}/flow"
    example, changes = ("tiny.yaml", ()) if scale.tiny else ("quickstart.yaml", QUICKSTART_ON_A_GPU)
    config = load_config(ROOT / "examples" / example, [f"run_name={RUN}", f"store.uri={store}", *changes])
    records = RunRecords(open_store(config.store), RUN)
    records.create_run(config)
    began = time.perf_counter()
    ray_port, prefect_port = free_ports(2)
    station = workstation.up(ray_port=ray_port, prefect_port=prefect_port)
    try:
        found.note("seconds to start Ray and Prefect", time.perf_counter() - began)
        environment = {
            **os.environ,
            **token_environment(),
            "RAY_ADDRESS": station.ray_address,
            **workstation.prefect_client(station.prefect_api_url),
        }
        killed = _drive(store, environment, "driver", "after", "train_step", str(KILLED_IN))
        found.equal("the driver's end", killed[0], -signal.SIGKILL)
        found.note("seconds to the kill", killed[1])
        actors = actor_pids()
        resumed = _drive(store, environment)
        found.equal("the resumed driver's end", resumed[0], 0)
        found.note("seconds from the resume to the end", resumed[1])
        found.equal("actors that the resumed driver found", actor_pids(), actors)
    finally:
        workstation.down()
    for it in range(ITERATIONS):
        _iteration(found, records, it)


def _drive(store: str, environment: dict[str, str], *fate: str) -> tuple[int, float]:
    """Exit status of a driver, and its seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.resume.driver", RUN, store, str(ITERATIONS), *fate]
    done = subprocess.run(command, env=environment, cwd=ROOT, timeout=DRIVER_DEADLINE_S, check=False)
    return done.returncode, time.perf_counter() - began


def _iteration(found: Findings, records: RunRecords, it: int) -> None:
    attempts = {step: records.attempts(it, step) for step in STEPS}
    found.equal(f"executions in iteration {it}", attempts, dict.fromkeys(STEPS, 1))
    commit = records.iteration_commit(it)
    found.equal(f"iteration {it} is committed", commit is not None, True)
    if commit is not None:
        seconds = {name: commit["steps"][name]["seconds"] for name in STEPS}
        found.note(f"iteration {it}, seconds", ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
        for name in ("reward/total/mean", "mismatch/logp_abs/mean", "mismatch/kl/mean"):
            found.note(f"iteration {it}, {name}", float(commit["metrics"][name]))
