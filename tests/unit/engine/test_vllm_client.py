"""Calls to a vLLM that dies before it answers, with a plain object in its place."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from vllm import SamplingParams

from lora_rl.engine.vllm_client import EngineRequest, VllmClient
from lora_rl.errors import EngineDied

REQUEST = EngineRequest(prompt_tokens=[1], params=SamplingParams(), lora=None, salt="s")


class Llm:
    """Answers nothing, and tells when it was called."""

    errored = False

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def _never(self, *_: Any, **__: Any) -> Any:
        if not self.errored:
            self.called.set()
            await asyncio.Event().wait()

    add_lora = remove_lora = sleep = wake_up = pause_generation = resume_generation = _never

    async def abort(self, ids: list[str]) -> None:
        pass


CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "load": lambda client: client.add_lora(None),
    "unload": lambda client: client.remove_lora(1),
    "sleep": lambda client: client.sleep(),
    "wake": lambda client: client.wake(),
    "batch": lambda client: client.run_batch([REQUEST]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_that_a_dead_vllm_never_answers_ends(call: Callable[[Any], Awaitable[Any]]) -> None:
    llm: Any = Llm()
    calling = asyncio.ensure_future(call(VllmClient(llm)))
    await asyncio.wait_for(llm.called.wait(), 60)
    llm.errored = True
    with pytest.raises(EngineDied, match="processes have died"):
        await asyncio.wait_for(calling, 60)
