"""How long a rollout takes on a CPU with vLLM's LoRA arithmetic and with ours (lora_rl/engine/lora_ops.py).

    python -m benchmarks.cpu_lora_ops [--out FILE]

SmolLM2-135M in bfloat16, rank 16 on all linear layers, 16 prompts of 8 samples, up to 20 tokens each. Each variant has
an engine of its own. Takes about four minutes on two cores; appends two rows to benchmarks/results/cpu_lora_ops.md.
"""

import argparse
import asyncio
import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoTokenizer

from lora_rl.config import EngineConfig, SamplingConfig, StoreConfig
from lora_rl.engine import GenerateRequest
from lora_rl.engine.actor import EngineActor
from lora_rl.models import resolve_model
from lora_rl.store import AdapterRef, versions
from tests.peft_adapters import PeftExporter

RESULTS = Path(__file__).parent / "results" / "cpu_lora_ops.md"
HEADER = """# LoRA arithmetic on a CPU: rollout of 128 samples, rank 16, SmolLM2-135M in bfloat16

`python -m benchmarks.cpu_lora_ops`

| date | machine | vllm | LoRA arithmetic | seconds | tokens | tokens/s | speed-up |
|---|---|---|---|---|---|---|---|
"""
RANK, PROMPTS, SAMPLES, TOKENS = 16, 16, 8, 20


@dataclass(frozen=True)
class Rollout:
    seconds: float
    tokens: int


async def measure(model: Path, store: StoreConfig, adapter: AdapterRef, *, fast: bool) -> Rollout:
    """One rollout by a warm engine."""
    # The untrained adapter's effect is large, and rounding in bfloat16 with it.
    config = EngineConfig(max_model_len=512, kv_cache_gib=1.0, fast_cpu_lora=fast, probe_tolerance=2.0)
    engine = EngineActor(model_path=str(model), dtype="bfloat16", engine=config, max_rank=RANK, slots=1)
    await engine.start()
    try:
        await engine.publish(store=store, adapter=adapter)
        requests, sampling = make_requests(model), SamplingConfig(max_response_tokens=TOKENS)
        await engine.generate(version=adapter.label, requests=requests[:16], sampling=sampling, batch_id="warm-up")
        started = time.perf_counter()
        answers = await engine.generate(
            version=adapter.label, requests=requests, sampling=sampling, batch_id="measured"
        )
        return Rollout(time.perf_counter() - started, sum(len(answer.tokens) for answer in answers))
    finally:
        await engine.shutdown()


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


def rows(rollouts: dict[str, Rollout]) -> str:
    """Table rows; the speed-up is tokens per second over the first variant's."""
    where = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    rates = {name: rollout.tokens / rollout.seconds for name, rollout in rollouts.items()}
    slowest = next(iter(rates.values()))
    return "".join(
        f"| {datetime.now(UTC):%Y-%m-%d} | {where} | {versions()['vllm']} | {name} | {rollout.seconds:.1f} | "
        f"{rollout.tokens} | {rates[name]:.0f} | {rates[name] / slowest:.1f}x |\n"
        for name, rollout in rollouts.items()
    )


async def main(out: Path) -> None:
    model = resolve_model("smollm2-135m-instruct")
    with TemporaryDirectory() as directory:
        store = StoreConfig(uri=f"file://{directory}")
        adapter = PeftExporter(model, store).export("bench", 1, scale=0.01, rank=RANK)
        rollouts = {
            name: await measure(model, store, adapter, fast=fast)
            for name, fast in (("shipped with vLLM", False), ("lora_rl.engine.lora_ops", True))
        }
    table = rows(rollouts)
    print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text((out.read_text() if out.exists() else HEADER) + table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="table to append to")
    asyncio.run(main(parser.parse_args().out))
