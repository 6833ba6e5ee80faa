"""vLLM's schedulers, with stop texts found in the step that completes them. Loaded in the engine-core process."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from transformers import AutoTokenizer
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from lora_rl.engine.stop_texts import STOP_TEXTS, ends_with_stop


class StopTextScheduler(Scheduler):
    """For engines without asynchronous scheduling."""

    @cached_property
    def _decode(self) -> Callable[[list[int]], str]:
        tokenizer = AutoTokenizer.from_pretrained(self.vllm_config.model_config.tokenizer)
        return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
        params = request.sampling_params
        stops = params.extra_args.get(STOP_TEXTS) if params is not None and params.extra_args else None
        if stops and new_token_ids and not stopped and ends_with_stop(self._decode, request.output_token_ids, stops):
            request.status = RequestStatus.FINISHED_STOPPED
            return new_token_ids, True
        return new_token_ids, stopped


class AsyncStopTextScheduler(StopTextScheduler, AsyncScheduler):
    """For engines that schedule a step while the one before still runs."""
