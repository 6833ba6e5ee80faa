"""Grades batches of samples in worker processes."""

import asyncio
import math
import pickle
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lora_rl.data.types import Sample
from lora_rl.errors import RewardError
from lora_rl.rewards.process import GraderProcess, Grading

if TYPE_CHECKING:  # Worker processes import this package, and building the config classes is half of their start.
    from lora_rl.config import RewardConfig, RewardTerm

CHUNKS_PER_WORKER = 4
"""Cheap samples travel in few messages, yet the last chunks are small enough to spread."""


class GraderPool:
    """Grader processes that live until `close`. Use it from one event loop; batches may overlap.

    Processes start at construction and import their graders meanwhile. A process that hangs or dies is replaced.
    """

    def __init__(self, config: "RewardConfig") -> None:
        self._config = config
        self._weights = dict(zip(term_keys(config.terms), (term.weight for term in config.terms), strict=True))
        self._terms = pickle.dumps(
            [(key, term.name, term.params) for key, term in zip(self._weights, config.terms, strict=True)]
        )
        self._processes = [GraderProcess(self._terms) for _ in range(config.workers)]
        self._idle: asyncio.Queue[int] = asyncio.Queue()
        for index in range(config.workers):
            self._idle.put_nowait(index)
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers at present."""
        return [process.pid for process in self._processes]

    async def grade(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples in order, with `reward` (weighted sum of the scores) and `reward_details` (score of each term).

        A grader that raises, takes over `deadline_s` for a sample or ends its process costs that sample alone: its
        details have `error`, its reward is 0 or, with `on_error: drop`, None. Raises RewardError when a process cannot
        start.
        """
        if self._closed:
            raise RewardError("the grader pool is closed; make another one")
        waiting = deque(range(len(samples)))
        gradings: dict[int, Grading] = {}
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(min(self._config.workers, len(samples))):
                    lanes.create_task(self._lane(samples, waiting, gradings))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [self._scored(sample, gradings[at]) for at, sample in enumerate(samples)]

    def close(self) -> None:
        """Ends all processes; no batch may be under way."""
        self._closed = True
        for process in self._processes:
            process.end()

    async def _lane(self, samples: Sequence[Sample], waiting: deque[int], gradings: dict[int, Grading]) -> None:
        """Takes chunks of what waits, one at a time, until nothing does."""
        while waiting:
            index = await self._idle.get()
            try:
                process = self._alive(index)
                size = math.ceil(len(waiting) / (self._config.workers * CHUNKS_PER_WORKER))
                chunk = [waiting.popleft() for _ in range(size)]
                try:
                    done = await process.grade([samples[at] for at in chunk], self._config.deadline_s)
                except BaseException:
                    process.end()  # Its late answers would be taken for those of the next chunk.
                    raise
            finally:
                self._idle.put_nowait(index)
            gradings.update(zip(chunk, done, strict=False))
            waiting.extendleft(reversed(chunk[len(done) :]))

    def _alive(self, index: int) -> GraderProcess:
        if not self._processes[index].alive:
            self._processes[index].end()
            self._processes[index] = GraderProcess(self._terms)
        return self._processes[index]

    def _scored(self, sample: Sample, grading: Grading) -> Sample:
        if grading.error is None:
            reward = math.fsum(self._weights[key] * score for key, score in grading.scores.items())
            return replace(sample, reward=reward, reward_details=dict(grading.scores))
        details = {**grading.scores, "error": grading.error}
        return replace(sample, reward=0.0 if self._config.on_error == "zero" else None, reward_details=details)


def term_keys(terms: "Sequence[RewardTerm]") -> list[str]:
    """Names of the terms in details and metrics: the grader's name, and from its second use on `<name>_2` and so on."""
    seen: Counter[str] = Counter()
    keys = []
    for term in terms:
        seen[term.name] += 1
        keys.append(term.name if seen[term.name] == 1 else f"{term.name}_{seen[term.name]}")
    return keys
