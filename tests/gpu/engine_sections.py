"""vLLM beside the trainer on one device: hot loads, agreement of log-probabilities, stop texts, resident versions."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from lora_rl.config import AdapterConfig, EngineConfig, OptimizerConfig, SamplingConfig
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.types import FinishReason, Prompt, Sample
from lora_rl.engine import Completion
from lora_rl.engine.actor import EngineActor
from lora_rl.rollout.groups import group_of
from lora_rl.rollout.requests import requests_of
from lora_rl.store import AdapterRef, BlobRef
from tests.gpu.bench_trainer import BenchTrainer
from tests.gpu.findings import Findings
from tests.gpu.scale import Scale

MAX_LOGP_GAP = {"float32": 0.015, "float16": 0.015, "bfloat16": 0.04}
"""Of mean |logp trainer - logp vLLM|. Rounding to bfloat16 alone makes 0.03 of SmolLM2 (docs/reproducibility.md)."""
MAX_KL = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 2e-3}
"""Of the k3 estimate of the divergence."""
GROUP, ANSWER_TOKENS, STEPS = 8, 48, 3
ADAPTER = AdapterConfig(name="check", rank=16, alpha=32, optimizer=OptimizerConfig(lr=1e-3))
QUESTIONS = (
    "Tell me a story about {n} friends.",
    "What is {n} plus 3?",
    "Name {n} animals that live in the sea.",
    "Why are there {n} days of rain?",
)


def engine(found: Findings, scale: Scale) -> None:
    """Publishes two versions, and compares what the engine says of its answers with what the trainer says."""
    _check(found, scale, scale.dtype, graphs=())


def engine_float16(found: Findings, scale: Scale) -> None:
    """The same in the type in which both agree best, and in CUDA graphs."""
    _check(found, scale, "float16", graphs=(1, 8, 32, 128, 256))


def _check(found: Findings, scale: Scale, dtype: str, *, graphs: tuple[int, ...]) -> None:
    with BenchTrainer(
        scale.model, dtype, scale.scratch, max_rank=16, max_tokens_per_gpu=16384 if not scale.tiny else 2048
    ) as trainer:
        asyncio.run(_Check(found, scale, trainer, dtype, graphs).run())


class _Check:
    """One engine with the adapters of one trainer."""

    def __init__(
        self, found: Findings, scale: Scale, trainer: BenchTrainer, dtype: str, graphs: tuple[int, ...]
    ) -> None:
        self._found, self._scale, self._trainer, self._dtype = found, scale, trainer, dtype
        self._engine = EngineActor(
            model_path=str(scale.model),
            dtype=dtype,
            engine=EngineConfig(
                max_model_len=512,
                max_num_seqs=256,
                kv_cache_gib=0.5,
                gpu_kv_cache_gib=0.5,
                gpu_memory_utilization=0.15,
                enforce_eager=not graphs,
                cuda_graph_sizes=graphs,
            ),
            max_rank=16,
            slots=1,
        )
        renderer = ChatRenderer(str(scale.model))
        texts = [question.format(n=n) for n in range(2, 3 if scale.tiny else 6) for question in QUESTIONS]
        rendered = [renderer.render(text, None) for text in texts]
        self._prompts = [
            Prompt(id=f"0/{number}", text=each.text, tokens=each.tokens, label=None, metadata={})
            for number, each in enumerate(rendered)
        ]

    async def run(self) -> None:
        started = await self._engine.start()
        self._found.note("seconds to start vLLM", started["seconds"])
        try:
            first, second, answers = await self._two_versions()
            await self._old_version_still_serves(first, answers)
            await self._stop_texts(second)
        finally:
            await self._engine.shutdown()

    async def _two_versions(self) -> tuple[AdapterRef, AdapterRef, list[Completion]]:
        """A fresh adapter, and the same after a few steps on the engine's own answers."""
        state = self._trainer.start(ADAPTER)
        first = await self._publish(state, 1)
        answers = await self._answers(first, "first")
        samples = self._rewarded(first, answers)
        self._mismatch("fresh adapter", state, samples)
        for _ in range(STEPS):
            (stepped,) = self._trainer.step([self._trainer.batch(ADAPTER, state, self._trainer.put(samples))])
            state = stepped.ref
        second = await self._publish(state, 2)
        again = await self._answers(second, "second")
        self._mismatch("trained adapter", state, self._rewarded(second, again))
        return first, second, answers

    def _mismatch(self, what: str, state: BlobRef, samples: Sequence[Sample]) -> None:
        (scored,) = self._trainer.step([self._trainer.batch(ADAPTER, state, self._trainer.put(samples))])
        self._found.at_most(
            f"|Δlogp| to the trainer: {what}", scored.metrics["mismatch/logp_abs/mean"], MAX_LOGP_GAP[self._dtype]
        )
        self._found.at_most(f"KL (k3) to the trainer: {what}", scored.metrics["mismatch/kl/mean"], MAX_KL[self._dtype])

    async def _old_version_still_serves(self, first: AdapterRef, answers: Sequence[Completion]) -> None:
        self._found.equal("versions served", ", ".join(await self._engine.serving()), "check@1, check@2")
        again = await self._answers(first, "first again")
        same = fmean(new.tokens == old.tokens for new, old in zip(again, answers, strict=True))
        self._found.note("share of equal answers, old version again", same)
        self._found.equal("old version answers as itself", {answer.adapter_version for answer in again}, {"check@1"})

    async def _stop_texts(self, adapter: AdapterRef) -> None:
        stop = "e"
        answers = await self._answers(adapter, "stop", stop=(stop,))
        stopped = [answer for answer in answers if answer.finish_reason is FinishReason.STOP]
        self._found.at_least("answers ended by a stop text or by themselves", len(stopped) / len(answers), 0.5)
        self._found.equal("answers with the stop text in them", sum(stop in answer.text for answer in answers), 0)
        self._found.note("mean tokens with a stop text", fmean(len(answer.tokens) for answer in answers))

    async def _publish(self, state: BlobRef, version: int) -> AdapterRef:
        adapter = self._trainer.actor.export_adapter(
            store=self._trainer.config, adapter=ADAPTER, state=state, version=version, base_model_name="check"
        ).adapter
        reply = await self._engine.publish(store=self._trainer.config, adapter=adapter)
        for stage, seconds in reply.seconds.items():
            self._found.note(f"publish {version}, {stage}: ms", 1000 * seconds)
        self._found.note(f"publish {version}, probe error", reply.probe_error)
        self._found.note(f"publish {version}, probe effect", reply.probe_effect)
        return adapter

    async def _answers(self, adapter: AdapterRef, batch: str, stop: tuple[str, ...] = ()) -> list[Completion]:
        requests = [request for prompt in self._prompts for request in requests_of(prompt, num_samples=GROUP, seed=0)]
        sampling = SamplingConfig(max_response_tokens=ANSWER_TOKENS, stop=stop)
        began = time.perf_counter()
        answers = await self._engine.generate(
            version=adapter.label, requests=requests, sampling=sampling, batch_id=batch
        )
        seconds, tokens = time.perf_counter() - began, sum(len(answer.tokens) for answer in answers)
        self._found.note(f"rollout '{batch}': {len(answers)} answers, tokens/s", tokens / seconds)
        return answers

    def _rewarded(self, adapter: AdapterRef, answers: Sequence[Completion]) -> list[Sample]:
        """Samples with rewards that differ within each group."""
        draw = random.Random(0)
        groups = [answers[start : start + GROUP] for start in range(0, len(answers), GROUP)]
        return [
            replace(sample, reward=draw.random())
            for prompt, group in zip(self._prompts, groups, strict=True)
            for sample in group_of(prompt, group, adapter)
        ]
