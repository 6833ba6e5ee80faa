import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from lora_rl.config import RewardConfig, RewardTerm
from lora_rl.data.types import Sample
from lora_rl.errors import RewardError
from lora_rl.rewards.pool import GraderPool, term_keys
from tests.builders import make_sample
from tests.processes import running, wait_until

GRADERS = "tests.unit.rewards.graders"
DEADLINE_S = 3.0
"""Of one sample: a worker on a busy machine answers well within it, and a test waits for it where a grader hangs."""


def config_of(*names: str, **fields: Any) -> RewardConfig:
    terms = tuple(RewardTerm(name=name if ":" not in name else f"{GRADERS}{name}") for name in names)
    values: dict[str, Any] = {"terms": terms, "deadline_s": DEADLINE_S}
    return RewardConfig(**values | fields)


def samples_of(*texts: str) -> list[Sample]:
    return [make_sample(id=f"0/0/{index}", response_text=text, label="1") for index, text in enumerate(texts)]


def graded(config: RewardConfig, samples: list[Sample]) -> list[Sample]:
    with closing(GraderPool(config)) as pool:
        return asyncio.run(pool.grade(samples))


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    """Two workers that do what the answers say."""
    with closing(GraderPool(config_of(":by_text"))) as pool:
        yield pool


def test_reward_is_the_weighted_sum_and_details_hold_each_score() -> None:
    config = RewardConfig(
        terms=(
            RewardTerm(name="exact", weight=0.6),
            RewardTerm(name="number", weight=0.3),
            RewardTerm(name="format", weight=0.1, params={"pattern": r"-?\d+"}),
        )
    )
    right, wordy, wrong = graded(config, samples_of("1", "it is 1", "7"))
    assert (right.reward, wordy.reward, wrong.reward) == (1.0, 0.3, 0.1)
    assert wordy.reward_details == {"exact": 0.0, "number": 1.0, "format": 0.0}


def test_samples_come_back_in_order_and_otherwise_unchanged() -> None:
    samples = samples_of(*("x" * (index % 7) for index in range(200)))
    results = graded(config_of(":good", workers=3), samples)
    assert [result.reward for result in results] == [float(index % 7) for index in range(200)]
    assert [result.id for result in results] == [sample.id for sample in samples]
    assert all(sample.reward is None for sample in samples)


def test_no_samples_need_no_grading() -> None:
    assert graded(config_of(":good"), []) == []


def test_async_grader_is_awaited() -> None:
    config = RewardConfig(terms=(RewardTerm(name=f"{GRADERS}:awaited", params={"factor": 2}),))
    assert graded(config, samples_of("abc"))[0].reward == 6.0


def test_grader_may_use_signals() -> None:
    assert graded(config_of(":alarmed"), samples_of("a"))[0].reward == 1.0


def test_workers_do_not_import_torch() -> None:
    assert graded(config_of(":imports_torch", "exact", "math"), samples_of("a"))[0].reward == 0.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise", "by_text: ValueError: cannot grade 0/0/1"),
        ("exit", "the grader's process ended with exit code 3"),
        ("sys.exit", "by_text: SystemExit: 4"),
        ("abort", "the grader's process ended with signal SIGABRT"),
        ("hang", f"took over {DEADLINE_S:g} s"),
        ("none", "score None is not a finite number"),
        ("nan", "score nan is not a finite number"),
        ("text", "score '1.0' is not a finite number"),
    ],
)
async def test_bad_grader_costs_its_sample_alone(pool: GraderPool, text: str, error: str) -> None:
    before, bad, after = await pool.grade(samples_of("fine", text, "fine"))
    assert (before.reward, bad.reward, after.reward) == (1.0, 0.0, 1.0)
    assert error in str(bad.reward_details["error"])
    assert "error" not in before.reward_details
    assert "error" not in after.reward_details


async def test_bad_samples_among_many_do_not_stall_the_batch(pool: GraderPool) -> None:
    texts = ["fine"] * 128
    texts[3] = texts[60] = "hang"
    texts[4] = texts[127] = "exit"
    texts[5] = "raise"
    results = await pool.grade(samples_of(*texts))
    assert [index for index, result in enumerate(results) if "error" in result.reward_details] == [3, 4, 5, 60, 127]
    assert sum(result.reward or 0.0 for result in results) == 123.0


def test_coroutine_that_never_ends_meets_the_deadline() -> None:
    result = graded(config_of(":hang_awaiting"), samples_of("a"))[0]
    assert result.reward_details == {"error": f"took over {DEADLINE_S:g} s"}


def test_failed_sample_is_dropped_where_the_config_says_so() -> None:
    fine, bad = graded(config_of(":by_text", on_error="drop"), samples_of("fine", "raise"))
    assert fine.reward == 1.0
    assert bad.reward is None


def test_terms_before_the_failing_one_keep_their_scores_in_the_details() -> None:
    result = graded(config_of("exact", ":by_text"), samples_of("raise"))[0]
    assert result.reward == 0.0
    assert result.reward_details["exact"] == 0.0
    assert set(result.reward_details) == {"exact", "error"}


async def test_scores_of_other_number_types_become_floats(pool: GraderPool) -> None:
    results = await pool.grade(samples_of("bool", "numpy"))
    assert [result.reward_details[f"{GRADERS}:by_text"] for result in results] == [1.0, 0.5]
    assert all(type(result.reward) is float for result in results)


async def test_long_errors_are_cut_and_can_be_stored(pool: GraderPool) -> None:
    (result,) = await pool.grade(samples_of("raise surrogate"))
    error = str(result.reward_details["error"])
    assert len(error) <= 500
    error.encode()


async def test_output_of_graders_does_not_disturb_the_scores(pool: GraderPool) -> None:
    assert [result.reward for result in await pool.grade(samples_of("print", "print", "fine"))] == [1.0] * 3


def test_huge_and_foreign_texts_arrive_whole() -> None:
    texts = ["x" * 5_000_000, "naïve 数学 🧮\x00\n", "\u202e"]
    results = graded(config_of(":good", deadline_s=120), samples_of(*texts))
    assert [result.reward for result in results] == [float(len(text)) for text in texts]
    assert [result.response_text for result in results] == texts


async def test_overlapping_batches_share_the_workers(pool: GraderPool) -> None:
    first, second = await asyncio.gather(
        pool.grade(samples_of(*["fine"] * 20, "hang")), pool.grade(samples_of("raise", *["fine"] * 20))
    )
    assert [result.reward for result in first] == [1.0] * 20 + [0.0]
    assert [result.reward for result in second] == [0.0] + [1.0] * 20


async def test_worker_killed_between_batches_is_replaced_at_no_cost(pool: GraderPool) -> None:
    await pool.grade(samples_of("fine", "fine"))
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [result.reward for result in await pool.grade(samples_of("fine", "fine"))] == [1.0, 1.0]


async def test_cancelled_batch_ends_its_graders_and_leaves_the_pool_usable(pool: GraderPool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pool.grade(samples_of("hang", "hang"))
    assert [result.reward for result in await pool.grade(samples_of("fine", "raise"))] == [1.0, 0.0]


async def test_grader_that_cannot_be_imported_is_an_error_with_the_reason() -> None:
    with closing(GraderPool(config_of(":missing"))) as pool, pytest.raises(RewardError, match="no function missing"):
        await pool.grade(samples_of("a"))


async def test_close_leaves_no_process() -> None:
    pool = GraderPool(config_of(":by_text"))
    (result,) = await pool.grade(samples_of("orphan"))
    pids = [*pool.pids, int(result.reward or 0)]
    assert all(map(running, pids))
    pool.close()
    wait_until(lambda: not any(map(running, pids)), "end of the workers and of what they started")
    with pytest.raises(RewardError, match="closed"):
        await pool.grade(samples_of("fine"))


async def test_replaced_worker_is_gone() -> None:
    with closing(GraderPool(config_of(":by_text", workers=1))) as pool:
        (first,) = await pool.grade(samples_of("pid"))
        await pool.grade(samples_of("hang"))
        assert not running(int(first.reward or 0))


def test_pool_works_in_another_thread() -> None:
    results: list[Sample] = []
    thread = threading.Thread(target=lambda: results.extend(graded(config_of(":alarmed"), samples_of("a"))))
    thread.start()
    thread.join()
    assert [result.reward for result in results] == [1.0]


def _grade_in_daemon(connection: Any) -> None:
    connection.send(graded(config_of(":by_text"), samples_of("fine", "hang"))[0].reward)


def test_pool_works_in_a_daemonic_process() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_grade_in_daemon, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(200)
    assert ours.recv() == 1.0
    process.join()


PARENT = """
import asyncio
from lora_rl.rewards.pool import GraderPool
from tests.unit.rewards.test_pool import config_of, samples_of

async def main():
    pool = GraderPool(config_of(":by_text", deadline_s=600))
    await pool.grade(samples_of("fine", "fine"))
    print(*pool.pids, flush=True)
    await pool.grade(samples_of("hang"))

asyncio.run(main())
"""


def test_killed_parent_leaves_no_workers_busy_or_idle() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(running, pids))
    parent.kill()
    parent.wait()
    try:
        wait_until(lambda: not any(map(running, pids)), "end of the workers whose parent was killed")
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)


def test_repeated_graders_get_keys_of_their_own() -> None:
    terms = config_of("format", "exact", "format", "format").terms
    assert term_keys(terms) == ["format", "exact", "format_2", "format_3"]
