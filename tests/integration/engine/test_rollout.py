import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoTokenizer

from lora_rl.config import EngineConfig, SamplingConfig, StoreConfig
from lora_rl.data.types import FinishReason
from lora_rl.engine import GenerateRequest
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import EngineError
from tests.integration.engine.batches import answers, contents, make_requests, until_decoding
from tests.peft_adapters import PeftExporter, next_logp
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def version(engine: EngineActor, store: StoreConfig, exporter: PeftExporter) -> str:
    await engine.publish(store=store, adapter=exporter.export("rollout", 1, seed=5))
    return "rollout@1"


async def test_answers_come_in_the_order_of_the_requests(engine: EngineActor, version: str):
    requests = make_requests(40)
    completions = await answers(engine, version, requests)
    assert [answer.id for answer in completions] == [request.id for request in requests]
    assert all(len(answer.tokens) == len(answer.logp) > 0 for answer in completions)


async def test_log_probabilities_are_those_at_the_sampling_temperature(
    engine: EngineActor, version: str, exporter: PeftExporter
):
    request = make_requests(1)[0]
    (answer,) = await answers(engine, version, [request], temperature=0.7)
    logp_TV = next_logp(exporter.model(seed=5), [*request.prompt_tokens, *answer.tokens], temperature=0.7)
    positions = range(len(request.prompt_tokens) - 1, len(request.prompt_tokens) - 1 + len(answer.tokens))
    expected = logp_TV[torch.tensor(positions), torch.tensor(answer.tokens)]
    torch.testing.assert_close(torch.tensor(answer.logp), expected, atol=5 * PARITY, rtol=0)


async def test_an_answer_ends_with_the_token_that_completes_a_stop_text(
    engine: EngineActor, version: str, model_path: Path
):
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    stops = ("e", "th")
    completions = await answers(engine, version, make_requests(24), stop=stops, max_response_tokens=100)
    stopped = [answer for answer in completions if answer.finish_reason is FinishReason.STOP]
    assert len(stopped) > 12
    for answer in completions:
        texts = [tokenizer.decode(answer.tokens[:n], skip_special_tokens=True) for n in range(len(answer.tokens) + 1)]
        assert not any(stop in texts[-2] for stop in stops)
        assert not any(stop in answer.text for stop in stops)
        assert texts[-1].startswith(answer.text)
        assert len(answer.logp) == len(answer.tokens)


async def test_an_answer_ends_with_a_special_token_that_is_a_stop_text(
    engine: EngineActor, version: str, model_path: Path
):
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    stops = ("<|im_start|>", "<|endoftext|>", "th")
    completions = await answers(engine, version, make_requests(24), stop=stops, max_response_tokens=200)
    special = {tokenizer.convert_tokens_to_ids(stop) for stop in stops[:2]}
    assert sum(answer.tokens[-1] in special for answer in completions) > 2
    for answer in completions:
        assert not special & set(answer.tokens[:-1])
        if answer.tokens[-1] in special:
            assert answer.finish_reason is FinishReason.STOP
            assert answer.text == tokenizer.decode(answer.tokens[:-1])


async def test_an_answer_is_cut_at_the_longest_allowed(engine: EngineActor, version: str):
    completions = await answers(engine, version, max_response_tokens=3)
    assert {len(answer.tokens) for answer in completions} == {3}
    assert {answer.finish_reason for answer in completions} == {FinishReason.LENGTH}


async def test_seeds_decide_the_answer(engine: EngineActor, version: str):
    prompt = make_requests(1)[0].prompt_tokens
    requests = [GenerateRequest(id=str(n), prompt_tokens=prompt, seed=n // 2) for n in range(8)]
    completions = await answers(engine, version, requests)
    equal = [a.tokens == b.tokens for a, b in pairwise(completions)]
    assert equal == [True, False, True, False, True, False, True]


async def test_prompts_that_fill_several_forward_passes_are_answered(engine: EngineActor, version: str):
    requests = [
        GenerateRequest(id=str(n), prompt_tokens=[5 + (n * 7 + i) % 500 for i in range(440)], seed=n) for n in range(24)
    ]
    first = await answers(engine, version, requests, max_response_tokens=20)
    assert await answers(engine, version, requests, max_response_tokens=20) == first


@pytest.mark.parametrize("prompt", [[], list(range(480))], ids=["empty", "too long"])
async def test_a_request_that_cannot_fit_is_refused(engine: EngineActor, version: str, prompt: list[int]):
    bad = GenerateRequest(id="bad", prompt_tokens=prompt, seed=0)
    with pytest.raises(EngineError, match=r"request bad: .*max_model_len 512"):
        await answers(engine, version, [*make_requests(2), bad])


async def test_an_aborted_batch_raises_and_leaves_nothing_behind(engine: EngineActor, version: str):
    before = await answers(engine, version)
    running = asyncio.create_task(
        answers(engine, version, make_requests(32, seed=9), batch_id="long", max_response_tokens=400)
    )
    waiting = asyncio.create_task(answers(engine, version, make_requests(32, seed=9), batch_id="waiting"))
    await until_decoding(engine)
    assert await engine.abort("waiting")
    assert await engine.abort("long")
    for task, name in ((running, "long"), (waiting, "waiting")):
        with pytest.raises(EngineError, match=f"batch {name}: aborted"):
            await task
    assert not await engine.abort("long")
    assert await answers(engine, version) == before


async def test_a_cancelled_call_leaves_nothing_behind(engine: EngineActor, version: str):
    before = await answers(engine, version)
    running = asyncio.create_task(answers(engine, version, make_requests(32, seed=9), max_response_tokens=400))
    await until_decoding(engine)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await answers(engine, version) == before


async def test_two_batches_under_one_id_are_refused(engine: EngineActor, version: str):
    running = asyncio.create_task(answers(engine, version, batch_id="twin"))
    await until_decoding(engine)
    with pytest.raises(EngineError, match="batch twin: already running"):
        await answers(engine, version, batch_id="twin")
    await running


async def test_batches_at_the_same_time_answer_as_they_do_alone(engine: EngineActor, version: str):
    batches = [make_requests(20, seed=seed) for seed in range(3)]
    alone = [await answers(engine, version, batch) for batch in batches]
    together = await asyncio.gather(
        *(answers(engine, version, batch, batch_id=str(number)) for number, batch in enumerate(batches))
    )
    assert [contents(batch) for batch in together] == [contents(batch) for batch in alone]


async def test_starting_again_starts_nothing(engine: EngineActor):
    server = engine._started()
    info = await engine.start()
    assert engine._started() is server
    assert info["max_rank"] == 8
    assert info["capacity"] == 5


async def test_an_engine_that_was_not_started_says_so(model_path: Path):
    actor = EngineActor(model_path=str(model_path), dtype="float32", engine=EngineConfig(), max_rank=8, slots=1)
    with pytest.raises(EngineError, match="not started"):
        await actor.generate(version="a@1", requests=[], sampling=SamplingConfig(), batch_id="b")
