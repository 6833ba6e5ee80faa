"""What an iteration costs beyond the actors' own work: Prefect, Ray calls, records and artifacts.

    python -m benchmarks.orchestration [--iterations N] [--aged N]

Runs examples/tiny.yaml on Ray and Prefect servers of its own and reads the times from the records: what lies between
two COMMITs and in no step. Then goes on with a run that has `--aged` committed iterations, copies of a real COMMIT,
whose iterations must cost the same. Takes about three minutes on two cores.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.report import RESULTS, append_result, table
from lora_rl.config import RunConfig, load_config
from lora_rl.store import STEPS, RunRecords, open_store

if TYPE_CHECKING:
    from tasks import Start

GOAL_S = 1.0
SPAN = 5
"""Iterations of which the median is taken."""
AGED_MORE = 6
EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny.yaml"
LOOKUPS = 10


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one iteration, from the COMMIT before it to its own."""

    wall: float
    steps: float
    """In the bodies of the five steps."""
    before: float
    """From the COMMIT before to the first step: artifacts, the next subflow, and asking the engines what they serve."""
    between: float
    """From the end of each step to the start of the next."""
    after: float
    """From the end of the last step to the COMMIT."""

    @property
    def beyond_steps(self) -> float:
        return self.wall - self.steps


def cost_of(records: RunRecords, it: int) -> Cost:
    """The cost of a committed iteration, whose steps were all executed without a break."""
    steps = [record for step in STEPS if (record := records.step_record(it, step))]
    starts = [_seconds(record.started) for record in steps]
    ends = [start + record.seconds for start, record in zip(starts, steps, strict=True)]
    begin, end = (_seconds((records.iteration_commit(n) or {})["committed"]) for n in (it - 1, it))
    return Cost(
        wall=end - begin,
        steps=sum(record.seconds for record in steps),
        before=starts[0] - begin,
        between=sum(start - end for start, end in zip(starts[1:], ends[:-1], strict=True)),
        after=end - ends[-1],
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def age(records: RunRecords, source: RunRecords, it: int, iterations: int) -> None:
    """Commits `iterations` copies of iteration `it` of `source`, each with its own number and adapter version."""
    start, commit = source.iteration_commit(-1), source.iteration_commit(it)
    if start is None or commit is None:
        raise LookupError(f"iteration {it}: not committed; run it first")
    records.commit_iteration(-1, start)
    for n in range(iterations):
        records.commit_iteration(n, {**commit, "it": n, "adapter": {**commit["adapter"], "version": n + 1}})


async def lookup_seconds(at: "Start") -> float:
    """The Ray calls of one iteration that do no work but stand inside steps: lookup, `start`, what is served, logs."""
    from lora_rl.cluster.calls import call
    from lora_rl.cluster.roles import engines, rollouter, trainer

    started = time.perf_counter()
    for role in (engines, rollouter, rollouter, trainer, trainer, engines):
        group = await role(at.config, at.model_path)
        if role is engines:
            await asyncio.gather(*(call(engine.serving, deadline_s=10) for engine in group.handles))
        await group.drain_logs()
    return time.perf_counter() - started


def new_run(name: str, store: str) -> tuple[RunConfig, RunRecords]:
    config = load_config(EXAMPLE, [f"run_name={name}", f"store.uri={store}"])
    records = RunRecords(open_store(config.store), name)
    records.create_run(config)
    return config, records


async def measure(store: str, iterations: int, aged: int) -> str:
    """Markdown of the results."""
    from flows.train import train
    from tasks import open_iteration

    _, fresh = new_run("fresh", store)
    await train(run="fresh", store=store, iterations=iterations)
    _, old = new_run("aged", store)
    age(old, fresh, iterations - 1, aged)
    await train(run="aged", store=store, iterations=aged + AGED_MORE)
    at = await open_iteration("fresh", iterations, store)
    lookups = median([await lookup_seconds(at) for _ in range(LOOKUPS)])
    spans = [(fresh, "a run of its own", first) for first in (1, (iterations - SPAN) // 2, iterations - SPAN)]
    return _tables([*spans, (old, f"after {aged} commits", aged + 1)], lookups)


def _tables(spans: Sequence[tuple[RunRecords, str, int]], lookups: float) -> str:
    rows, totals = [], []
    for records, what, first in spans:
        costs = [cost_of(records, it) for it in range(first, first + SPAN)]
        totals.append(median(cost.beyond_steps for cost in costs) + lookups)
        columns = [
            [cost.wall for cost in costs],
            [cost.steps for cost in costs],
            [cost.before for cost in costs],
            [cost.between for cost in costs],
            [cost.after for cost in costs],
        ]
        numbers = [f"{median(column):.2f}" for column in columns]
        rows.append([f"{what}, {first}-{first + SPAN - 1}", *numbers, f"{lookups:.2f}", f"**{totals[-1]:.2f}**"])
    header = ["iterations", "wall", "in steps", "before", "between", "after", "lookups in steps", "orchestration"]
    verdict = "met" if max(totals) <= GOAL_S else "missed"
    return (
        f"{table(header, rows)}\n\nSeconds; medians of {SPAN} iterations. Orchestration is wall - in steps + lookups. "
        f"Goal: at most {GOAL_S:g} s in each row: {verdict}. Last row over the first: {totals[-1] / totals[0]:.2f}."
    )


def main(iterations: int, aged: int) -> None:
    from lora_rl.cluster import workstation
    from lora_rl.cluster.token import token_environment
    from lora_rl.models import resolve_model

    resolve_model("tiny-qwen3")
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(TemporaryDirectory(prefix="lora-rl-bench-"))
        # A database of its own, so that what other runs left there has no part in the figures.
        os.environ.update({**workstation.QUIET, **token_environment(), "PREFECT_HOME": f"{folder}/prefect"})
        os.environ.update(cleanup.enter_context(workstation.private_prefect_server()))
        os.environ.pop("RAY_ADDRESS", None)
        # Ray and Prefect read their settings when they are imported.
        from lora_rl.cluster.connect import connect, disconnect

        connect()
        cleanup.callback(disconnect)
        body = asyncio.run(measure(f"file://{folder}/store", iterations, aged))
    append_result(RESULTS / "orchestration-cpu.md", title="Orchestration of an iteration", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=30, help=f"of the fresh run, {2 * SPAN} at least")
    parser.add_argument("--aged", type=int, default=300, help="copied commits of the aged run")
    arguments = parser.parse_args()
    main(arguments.iterations, arguments.aged)
