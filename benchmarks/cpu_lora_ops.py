"""How long a rollout takes on a CPU with vLLM's LoRA arithmetic and with ours (lora_rl/engine/lora_ops.py).

    python -m benchmarks.cpu_lora_ops [--times N]

SmolLM2-135M in bfloat16, rank 16 on all linear layers, 16 prompts of 8 samples, up to 20 tokens each. Each variant has
an engine of its own. Takes about five minutes on two cores.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoTokenizer

from benchmarks.report import RESULTS, append_result, table
from lora_rl.config import EngineConfig, SamplingConfig, StoreConfig
from lora_rl.engine import GenerateRequest
from lora_rl.engine.actor import EngineActor
from lora_rl.models import resolve_model
from lora_rl.store import AdapterRef
from tests.peft_adapters import PeftExporter

RANK, PROMPTS, SAMPLES, TOKENS = 16, 16, 8, 20


@dataclass(frozen=True)
class Rollout:
    seconds: float
    tokens: int


async def measure(model: Path, store: StoreConfig, adapter: AdapterRef, *, fast: bool, times: int) -> list[Rollout]:
    """`times` rollouts by a warm engine."""
    # The untrained adapter's effect is large, and rounding in bfloat16 with it.
    config = EngineConfig(max_model_len=512, kv_cache_gib=1.0, fast_cpu_lora=fast, probe_tolerance=2.0)
    engine = EngineActor(model_path=str(model), dtype="bfloat16", engine=config, max_rank=RANK, slots=1)
    await engine.start()
    try:
        await engine.publish(store=store, adapter=adapter)
        requests = make_requests(model)
        await _rollout(engine, adapter, requests[:16])
        return [await _rollout(engine, adapter, requests) for _ in range(times)]
    finally:
        await engine.shutdown()


async def _rollout(engine: EngineActor, adapter: AdapterRef, requests: list[GenerateRequest]) -> Rollout:
    started = time.perf_counter()
    answers = await engine.generate(
        version=adapter.label,
        requests=requests,
        sampling=SamplingConfig(max_response_tokens=TOKENS),
        batch_id="rollout",
    )
    return Rollout(time.perf_counter() - started, sum(len(answer.tokens) for answer in answers))


def make_requests(model: Path) -> list[GenerateRequest]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = []
    for number in range(PROMPTS):
        question = [{"role": "user", "content": f"Tell me a story about {number + 2} friends."}]
        prompts.append(tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False))
    return [
        GenerateRequest(id=f"{prompt}/{sample}", prompt_tokens=prompts[prompt], seed=SAMPLES * prompt + sample)
        for prompt in range(PROMPTS)
        for sample in range(SAMPLES)
    ]


async def main(times: int) -> None:
    model = resolve_model("smollm2-135m-instruct")
    rates: dict[str, list[float]] = {}
    rows = []
    with TemporaryDirectory() as directory:
        store = StoreConfig(uri=f"file://{directory}")
        adapter = PeftExporter(model, store).export("bench", 1, scale=0.01, rank=RANK)
        for name, fast in (("shipped with vLLM", False), ("lora_rl.engine.lora_ops", True)):
            rollouts = await measure(model, store, adapter, fast=fast, times=times)
            rates[name] = [rollout.tokens / rollout.seconds for rollout in rollouts]
            seconds = ", ".join(f"{rollout.seconds:.1f}" for rollout in rollouts)
            speed_up = max(rates[name]) / max(rates["shipped with vLLM"])
            rows.append([name, seconds, str(rollouts[0].tokens), f"{max(rates[name]):.0f}", f"{speed_up:.1f}"])
    header = ["LoRA arithmetic", "seconds of each rollout", "tokens", "tokens/s (best)", "speed-up"]
    body = (
        f"{PROMPTS} prompts of {SAMPLES} samples, up to {TOKENS} tokens each; rank {RANK} on all linear layers, "
        f"bfloat16, {EngineConfig().threads} threads. A warm engine for each variant.\n\n{table(header, rows)}"
    )
    append_result(RESULTS / "cpu_lora_ops-cpu.md", title="LoRA arithmetic on a CPU", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="rollouts measured of each variant")
    asyncio.run(main(parser.parse_args().times))
