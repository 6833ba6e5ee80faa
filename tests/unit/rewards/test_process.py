import asyncio
import pickle
import select
from collections.abc import Callable, Iterator

import pytest

from lora_rl.data.types import Sample
from lora_rl.errors import RewardError
from lora_rl.rewards.process import GraderProcess, Grading
from tests.builders import make_sample

Started = Callable[[str], GraderProcess]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts a process with one of the tests' graders as its only term; all are ended afterwards."""
    processes: list[GraderProcess] = []

    def start(grader: str) -> GraderProcess:
        terms = [("term", f"tests.unit.rewards.{grader}", {})]
        processes.append(GraderProcess(pickle.dumps(terms)))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def samples_of(*texts: str) -> list[Sample]:
    return [make_sample(response_text=text) for text in texts]


async def test_deadline_is_for_one_sample_not_for_the_batch(started: Started) -> None:
    gradings = await started("graders:slow").grade(samples_of(*"abcd"), deadline_s=3.0)
    assert gradings == [Grading(scores={"term": 1.0})] * 4


async def test_an_answer_counts_that_came_while_this_process_was_too_busy_to_read_it(started: Started) -> None:
    process = started("graders:good")
    await process.grade(samples_of("a"), deadline_s=60.0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    grading = asyncio.create_task(process.grade(samples_of("ab"), deadline_s=2.0))
    await asyncio.sleep(0)
    assert not grading.done()
    select.select([process._channel], [], [])
    while loop.time() < begun + 2.5:
        pass
    assert await grading == [Grading(scores={"term": 2.0})]


async def test_gradings_end_with_the_sample_that_ended_the_process(started: Started) -> None:
    process = started("graders:by_text")
    gradings = await process.grade(samples_of("fine", "exit", "fine"), deadline_s=60.0)
    assert gradings == [
        Grading(scores={"term": 1.0}),
        Grading(error="the grader's process ended with exit code 3"),
    ]
    assert not process.alive


async def test_start_of_the_process_is_not_counted_against_the_first_sample(started: Started) -> None:
    gradings = await started("slow_import:grade").grade(samples_of("a"), deadline_s=3.0)
    assert gradings == [Grading(scores={"term": 1.0})]


async def test_process_that_dies_while_starting_is_an_error(started: Started) -> None:
    process = started("graders:good")
    process.end()
    with pytest.raises(RewardError, match="while starting"):
        await process.grade(samples_of("a"), deadline_s=1.0)


async def test_ending_twice_is_harmless_and_tells_the_same(started: Started) -> None:
    process = started("graders:good")
    assert process.end() == process.end() == "signal SIGKILL"
