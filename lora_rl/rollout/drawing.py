"""One round of sampling: each engine answers its share of the prompts."""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from lora_rl.config import SamplingConfig
from lora_rl.data.types import Prompt
from lora_rl.errors import EngineError
from lora_rl.process_log import where_logged
from lora_rl.rollout.groups import Group, complete, group_of
from lora_rl.rollout.requests import requests_of, share_between
from lora_rl.rollout.types import EngineClient
from lora_rl.store.refs import AdapterRef

MAX_DRAWS = 3
"""Times a group is asked for whose samples were aborted."""

logger = logging.getLogger("lora_rl.rollout")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the answers of one rollout are drawn: by which version, on which engines."""

    engines: Sequence[EngineClient]
    adapter: AdapterRef
    sampling: SamplingConfig
    seed: int
    batch_id: str

    async def groups(self, prompts: Sequence[Prompt]) -> list[Group]:
        """A whole group for each prompt, in order; groups with an aborted sample are asked for again.

        Raises EngineError where a group stays incomplete, and whatever an engine raises; then all engines stop.
        """
        drawn: dict[str, Group] = {}
        missing = list(prompts)
        for _ in range(MAX_DRAWS):
            for prompt, group in zip(missing, await self._draw(missing), strict=True):
                if complete(group):
                    drawn[prompt.id] = group
            missing = [prompt for prompt in prompts if prompt.id not in drawn]
            if not missing:
                return [drawn[prompt.id] for prompt in prompts]
            logger.warning("batch %s: %d of %d groups were aborted", self.batch_id, len(missing), len(prompts))
        raise EngineError(
            f"batch {self.batch_id}: {len(missing)} groups (prompt {missing[0].id} first) were aborted {MAX_DRAWS} "
            f"times; the engines' logs, beside {where_logged()}, say what aborts them"
        )

    async def _draw(self, prompts: Sequence[Prompt]) -> list[Group]:
        shares = share_between(prompts, len(self.engines))
        try:
            async with asyncio.TaskGroup() as replicas:
                tasks = [
                    replicas.create_task(self._draw_share(engine, share))
                    for engine, share in zip(self.engines, shares, strict=True)
                    if share
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [group for task in tasks for group in task.result()]

    async def _draw_share(self, engine: EngineClient, prompts: Sequence[Prompt]) -> list[Group]:
        num_samples = self.sampling.n_samples_per_prompt
        requests = [
            request for prompt in prompts for request in requests_of(prompt, num_samples=num_samples, seed=self.seed)
        ]
        completions = await engine.generate(
            version=self.adapter.label,
            requests=requests,
            sampling=self.sampling,
            # An engine may still be ending a cancelled call of the same batch.
            batch_id=f"{self.batch_id}/{uuid.uuid4().hex}",
        )
        if [completion.id for completion in completions] != [request.id for request in requests]:
            raise EngineError(
                f"batch {self.batch_id}: {len(completions)} completions do not answer the {len(requests)} requests "
                "in their order; start the engine again"
            )
        return [
            group_of(prompt, completions[start : start + num_samples], self.adapter)
            for prompt, start in zip(prompts, range(0, len(completions), num_samples), strict=True)
        ]
