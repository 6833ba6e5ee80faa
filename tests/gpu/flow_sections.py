"""The real flow over Ray and Prefect: its driver is killed and the run goes on where it was; and on two GPUs."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from lora_rl.cluster import workstation
from lora_rl.cluster.token import token_environment
from lora_rl.config import load_config
from lora_rl.store import STEPS, RunRecords, open_store
from tests.gpu.engine_sections import MAX_KL, MAX_LOGP_GAP
from tests.gpu.findings import Findings
from tests.gpu.scale import Scale
from tests.processes import actor_pids, free_ports
from tests.resume.conftest import ROOT

ITERATIONS, KILLED_IN = 3, 1
DRIVER_DEADLINE_S = 210.0
SHARED = "placement.mode=colocated"
QUICKSTART_ON_A_GPU = (
    "engine.gpu_memory_utilization=0.2",
    "engine.gpu_kv_cache_gib=2",
    "engine.max_num_seqs=256",
    "trainer.max_tokens_per_gpu=16384",
)
LAYOUTS = {
    "both tensor-parallel": (SHARED, "engine.tensor_parallel=2", "trainer.tensor_parallel=2"),
    "a GPU for each": ("placement.mode=disaggregated",),
    "two replicas, data-parallel": (SHARED, "engine.replicas=2", "trainer.data_parallel=2"),
}
"""Ways to use two GPUs."""
LAYOUT_ITERATIONS = 2


def flow(found: Findings, scale: Scale) -> None:
    """Three iterations; kill -9 once iteration 1 has its train step; the same command again."""
    run = _Run(scale, "check", SHARED)
    with _station(found) as environment:
        killed = run.drive(ITERATIONS, environment, "driver", "after", "train_step", str(KILLED_IN))
        found.equal("the driver's end", killed[0], -signal.SIGKILL)
        found.note("seconds to the kill", killed[1])
        actors = actor_pids()
        resumed = run.drive(ITERATIONS, environment)
        found.equal("the resumed driver's end", resumed[0], 0)
        found.note("seconds from the resume to the end", resumed[1])
        found.equal("actors that the resumed driver found", actor_pids(), actors)
    for it in range(ITERATIONS):
        run.report(found, it)


def layouts(found: Findings, scale: Scale) -> None:
    """Runs of two iterations on one cluster, each with the two GPUs in another way."""
    with _station(found) as environment:
        for number, (name, changes) in enumerate(LAYOUTS.items()):
            if "engine.tensor_parallel=2" in changes:
                # SmolLM2 has nine heads
                changes = (f"model.name={scale.splits_in_two}", f"model.dtype={scale.dtype}", *changes)
            run = _Run(scale, f"layout-{number}", *changes)
            ended, seconds = run.drive(LAYOUT_ITERATIONS, environment)
            found.equal(f"{name}: the driver's end", ended, 0)
            found.note(f"{name}: seconds", seconds)
            for it in range(LAYOUT_ITERATIONS):
                run.report(found, it, f"{name}: ")


class _Run:
    """A run whose drivers are processes of their own."""

    def __init__(self, scale: Scale, name: str, *changes: str) -> None:
        example, fitting = ("tiny.yaml", ()) if scale.tiny else ("quickstart.yaml", QUICKSTART_ON_A_GPU)
        self._name, self._store = name, f"file://{scale.scratch}/runs"
        self._config = load_config(
            ROOT / "examples" / example, [f"run_name={name}", f"store.uri={self._store}", *fitting, *changes]
        )
        self._records = RunRecords(open_store(self._config.store), name)
        self._records.create_run(self._config)

    def drive(self, iterations: int, environment: dict[str, str], *fate: str) -> tuple[int, float]:
        """Exit status of a driver, and its seconds."""
        began = time.perf_counter()
        command = [sys.executable, "-m", "tests.resume.driver", self._name, self._store, str(iterations), *fate]
        done = subprocess.run(command, env=environment, cwd=ROOT, timeout=DRIVER_DEADLINE_S, check=False)
        return done.returncode, time.perf_counter() - began

    def report(self, found: Findings, it: int, of: str = "") -> None:
        """What the store says of an iteration."""
        attempts = {step: self._records.attempts(it, step) for step in STEPS}
        found.equal(f"{of}executions in iteration {it}", attempts, dict.fromkeys(STEPS, 1))
        commit = self._records.iteration_commit(it)
        found.equal(f"{of}iteration {it} is committed", commit is not None, True)
        if commit is None:
            return
        seconds = ", ".join(f"{name} {commit['steps'][name]['seconds']:.1f}" for name in STEPS)
        found.note(f"{of}iteration {it}, seconds", seconds)
        found.note(f"{of}iteration {it}, reward/total/mean", float(commit["metrics"]["reward/total/mean"]))
        dtype = self._config.model.dtype
        for name, limits in (("mismatch/logp_abs/mean", MAX_LOGP_GAP), ("mismatch/kl/mean", MAX_KL)):
            found.at_most(f"{of}iteration {it}, {name}", float(commit["metrics"][name]), limits[dtype])


@contextlib.contextmanager
def _station(found: Findings) -> Iterator[dict[str, str]]:
    """Ray and Prefect; the environment of their clients."""
    began = time.perf_counter()
    ray_port, prefect_port = free_ports(2)
    station = workstation.up(ray_port=ray_port, prefect_port=prefect_port)
    try:
        found.note("seconds to start Ray and Prefect", time.perf_counter() - began)
        yield {
            **os.environ,
            **token_environment(),
            "RAY_ADDRESS": station.ray_address,
            **workstation.prefect_client(station.prefect_api_url),
        }
    finally:
        workstation.down()
