"""Calls to a vLLM that dies before it answers, with a plain object in its place."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from lora_rl.engine.vllm_client import EngineRequest, VllmClient
from lora_rl.errors import EngineDied, EngineError

REQUEST = EngineRequest(prompt_tokens=[1], params=SamplingParams(), lora=None, salt="s")
LORA = LoRARequest("a@1", 1, "/adapter")


class Llm:
    """Answers nothing, and tells when it was called."""

    errored = False

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def _never(self, *_: Any, **__: Any) -> Any:
        if not self.errored:
            self.called.set()
            await asyncio.Event().wait()

    collective_rpc = remove_lora = sleep = wake_up = pause_generation = resume_generation = _never

    async def abort(self, ids: list[str]) -> None:
        pass


class DyingLlm(Llm):
    """Fails calls, as one does whose worker has died, before it says that it is dead."""

    async def _fails(self, *_: Any, **__: Any) -> Any:
        self.called.set()
        raise Exception("Call to some method failed: Executor failed.")

    collective_rpc = remove_lora = sleep = wake_up = pause_generation = resume_generation = _fails


CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "load": lambda client: client.add_lora(LORA),
    "unload": lambda client: client.remove_lora(1),
    "sleep": lambda client: client.sleep(),
    "wake": lambda client: client.wake(),
    "batch": lambda client: client.run_batch([REQUEST]),
}


@pytest.mark.parametrize("kind", [Llm, DyingLlm], ids=["never-answers", "fails"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_that_vllm_dies_of_or_never_answers_says_that_it_died(
    call: Callable[[Any], Awaitable[Any]], kind: type[Llm]
) -> None:
    llm: Any = kind()
    calling = asyncio.ensure_future(call(VllmClient(llm)))
    await asyncio.wait_for(llm.called.wait(), 60)
    llm.errored = True
    with pytest.raises(EngineDied, match="processes have died"):
        await asyncio.wait_for(calling, 60)


async def test_an_adapter_that_one_rank_refuses_is_refused() -> None:
    class RefusingLlm(Llm):
        async def collective_rpc(self, *_: Any, **__: Any) -> Any:
            return [None, "ValueError: no layer is named x"]

    llm: Any = RefusingLlm()
    with pytest.raises(EngineError, match="a@1: vLLM refused the adapter: ValueError: no layer is named x"):
        await VllmClient(llm).add_lora(LORA)
