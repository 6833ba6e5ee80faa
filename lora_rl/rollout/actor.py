"""The rollout actor: draws samples from the engines, and grades them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from lora_rl.config import DataConfig, RewardConfig, SamplingConfig, StoreConfig
from lora_rl.config.algorithm import DynamicSampling
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.samples_io import read_samples, write_samples
from lora_rl.data.sources import PromptSource, open_source
from lora_rl.data.types import Sample
from lora_rl.errors import EngineError, RewardError
from lora_rl.rewards import reward_metrics
from lora_rl.rollout.collection import collect
from lora_rl.rollout.drawing import Drawing
from lora_rl.rollout.graders import GraderPools
from lora_rl.rollout.types import EngineClient, GradeReply, RolloutReply
from lora_rl.store import AdapterRef, BlobRef, open_store
from lora_rl.tracking import sample_table

SAMPLES_KIND = "samples"
PREVIEW_ROWS = 8

logger = logging.getLogger("lora_rl.rollout")


class RolloutActor:
    """Holds the tokenizer, the prompts last opened and grader processes: caches, nothing that a restart would miss.

    Calls may overlap; one rollout runs at a time, and the last call wins.
    """

    def __init__(self, *, model_path: str) -> None:
        self._model_path = model_path
        self._renderer: ChatRenderer | None = None
        self._source: tuple[str, PromptSource] | None = None
        self._graders = GraderPools()
        self._session = ""
        self._starting = asyncio.Lock()
        self._rolling = asyncio.Lock()
        self._current: asyncio.Task[RolloutReply] | None = None

    async def start(self) -> dict[str, Any]:
        """Loads the tokenizer once; later calls return at once. Raises ConfigError where it has no chat template."""
        started = time.perf_counter()
        await self._started()
        return {"model": self._model_path, "seconds": time.perf_counter() - started}

    def renew(self, session: str) -> None:
        """Forgets the prompts and graders opened for another driver: rows and code may have changed since."""
        if session != self._session:
            self._session, self._source = session, None
            self._graders.renew()

    async def rollout(
        self,
        *,
        engines: Sequence[EngineClient],
        store: StoreConfig,
        data: DataConfig,
        sampling: SamplingConfig,
        seed: int,
        position: int,
        adapter: AdapterRef,
        reward: RewardConfig,
        dynamic_sampling: DynamicSampling | None,
        batch_id: str,
    ) -> RolloutReply:
        """Draws P * G samples under `adapter` for the prompts from `position` on, and stores them.

        `reward` acts only with `dynamic_sampling`. A rollout that still runs, left by a caller that is gone, is
        cancelled first. Raises DataError, EngineError, RewardError, StoreError; EngineError also where a later call
        cancels this one.
        """
        if self._current is not None:
            self._current.cancel()

        async def grade(samples: Sequence[Sample]) -> list[Sample]:
            async with self._graders.pool(reward) as pool:
                return await pool.grade(samples)

        async def run() -> RolloutReply:
            async with self._rolling:
                source = await self._opened(data, seed)
                drawing = Drawing(engines=engines, adapter=adapter, sampling=sampling, seed=seed, batch_id=batch_id)
                batch = await collect(
                    source, drawing, position=position, dynamic_sampling=dynamic_sampling, grade=grade
                )
                samples = await _stored(store, batch.samples)
                return RolloutReply(samples=samples, position=batch.position, metrics=batch.metrics)

        task = self._current = asyncio.create_task(run())
        try:
            return await task
        except asyncio.CancelledError:
            if self._current is task:
                raise
            raise EngineError(f"batch {batch_id}: cancelled, as another rollout was called for; await that") from None
        finally:
            if self._current is task:
                self._current = None

    async def grade(self, *, store: StoreConfig, samples: BlobRef, reward: RewardConfig) -> GradeReply:
        """Scores the samples that no grader has seen yet, and stores all of them.

        Raises DataError, StoreError; RewardError where not one sample has a reward.
        """
        data = await asyncio.to_thread(open_store(store).get_blob, samples)
        found = await asyncio.to_thread(read_samples, data)
        waiting = [sample for sample in found if not _graded(sample)]
        if waiting:
            async with self._graders.pool(reward) as pool:
                scored = {sample.id: sample for sample in await pool.grade(waiting)}
            found = [scored.get(sample.id, sample) for sample in found]
        if all(sample.reward is None for sample in found):
            reasons = sorted({str(sample.reward_details.get("error")) for sample in found})
            raise RewardError(
                f"reward: none of {len(found)} samples has a reward; mend the grader, it said: {'; '.join(reasons[:3])}"
            )
        return GradeReply(
            samples=await _stored(store, found),
            preview=sample_table(found, limit=PREVIEW_ROWS),
            metrics=reward_metrics(found),
        )

    async def shutdown(self) -> None:
        """Cancels a running rollout and ends the grader processes."""
        if self._current is not None:
            self._current.cancel()
            await asyncio.wait([self._current])
        self._graders.close()

    async def _started(self) -> ChatRenderer:
        async with self._starting:
            if self._renderer is None:
                self._renderer = await asyncio.to_thread(ChatRenderer, self._model_path)
            return self._renderer

    async def _opened(self, data: DataConfig, seed: int) -> PromptSource:
        renderer = await self._started()
        key = f"{seed}/{data.model_dump_json()}"
        if self._source is None or self._source[0] != key:
            source = await asyncio.to_thread(open_source, data, renderer, seed=seed)
            logger.info("%d prompts an epoch", len(source))
            self._source = key, source
        return self._source[1]


def _graded(sample: Sample) -> bool:
    # A grader that failed under `on_error: drop` leaves no reward, but it leaves details.
    return bool(sample.reward_details)


async def _stored(store: StoreConfig, samples: list[Sample]) -> BlobRef:
    data = await asyncio.to_thread(write_samples, samples)
    return await asyncio.to_thread(open_store(store).put_blob, SAMPLES_KIND, data)
