"""Engines that answer from memory, as told."""

import asyncio
from collections import Counter
from collections.abc import Callable

from lora_rl.config import SamplingConfig
from lora_rl.data.types import FinishReason
from lora_rl.engine.types import Completion, GenerateRequest
from lora_rl.errors import EngineError
from lora_rl.store.refs import AdapterRef


class MemoryEngine:
    """The tokens of an answer follow from the request's seed, its text from `answer`; `aborts` counts down by id."""

    def __init__(
        self,
        adapter: AdapterRef,
        answer: Callable[[GenerateRequest], str] = lambda request: "4",
        *,
        aborts: dict[str, int] | None = None,
    ) -> None:
        self.adapter, self.answer, self.aborts = adapter, answer, Counter(aborts or {})
        self.batches: list[list[str]] = []
        self.batch_ids: list[str] = []

    async def generate(
        self, *, version: str, requests: list[GenerateRequest], sampling: SamplingConfig, batch_id: str
    ) -> list[Completion]:
        self.batches.append([request.id for request in requests])
        self.batch_ids.append(batch_id)
        return [self._complete(request) for request in requests]

    def _complete(self, request: GenerateRequest) -> Completion:
        aborted = self.aborts[request.id] > 0
        self.aborts[request.id] -= 1
        return Completion(
            id=request.id,
            tokens=[request.seed % 256, 2],
            text=self.answer(request),
            logp=[-(request.seed % 1000) / 1000, -0.1],
            finish_reason=FinishReason.ABORT if aborted else FinishReason.STOP,
            adapter_version=self.adapter.label,
            adapter_digest=self.adapter.digest,
        )


class StuckEngine(MemoryEngine):
    """Never answers; tells when it was called and when it was cancelled, and ends then, as soon as `may_end` is set."""

    def __init__(self, adapter: AdapterRef, *, may_end: asyncio.Event | None = None) -> None:
        super().__init__(adapter)
        self.called, self.cancelled, self.may_end = asyncio.Event(), asyncio.Event(), may_end

    async def generate(self, **arguments: object) -> list[Completion]:
        self.called.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            if self.may_end is not None:
                await self.may_end.wait()
            raise
        return []


class FailingEngine(MemoryEngine):
    """Raises as soon as `when` is set."""

    def __init__(self, adapter: AdapterRef, when: asyncio.Event) -> None:
        super().__init__(adapter)
        self.when = when

    async def generate(self, **arguments: object) -> list[Completion]:
        await self.when.wait()
        raise EngineError("engine: out of memory")
