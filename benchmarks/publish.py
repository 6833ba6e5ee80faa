"""How long a hot load takes by stage, from the trainer's slot to the first token, beside vLLM's own `add_lora`.

    python -m benchmarks.publish [--cases NAME ...] [--times N] [--out FILE]

Cases: `tiny` (random, rank 4, float32), `smollm2` (SmolLM2-135M, rank 16), `qwen3-8b` (random weights of that shape,
rank 32). Trainer and engine are in one process, on one device. Each time an adapter is exported, published as a new
version and asked for one token; then vLLM alone loads the same files from memory. About a minute a case on two cores
or on a GPU.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import RESULTS, append_result, device_kind, table
from benchmarks.served import Case, Exporter, checkpoint, make_engine, memory_folder, remove
from lora_rl.config import SamplingConfig, StoreConfig
from lora_rl.engine import GenerateRequest
from lora_rl.engine.actor import EngineActor
from lora_rl.store import AdapterRef, download_adapter, open_store

WARM_UPS = 2
BARE_LORA_ID = 1_000_000
"""vLLM's numbers for adapters that it loads without us; above all that the engine gives out."""
CASES = {
    "tiny": Case(model="tiny-qwen3", dtype="float32", rank=4),
    "smollm2": Case(model="smollm2-135m-instruct", dtype="bfloat16", rank=16),
    "qwen3-8b": Case(model="qwen3-8b", dtype="bfloat16", rank=32),
}
ON_A_CPU, ON_A_GPU = ("tiny", "smollm2"), ("smollm2", "qwen3-8b")
STAGES = ("export", "read", "load", "probe", "publish", "first token", "all", "add_lora")


async def measure(case: Case, times: int) -> tuple[int, list[dict[str, float]]]:
    """Bytes of the adapter's weights, and the seconds of each round by stage."""
    path = checkpoint(case)
    with TemporaryDirectory() as folder:
        states = StoreConfig(uri=f"file://{folder}/states")
        exporter = Exporter(case, path, states)
        engine = make_engine(case, path, max_model_len=512, gpu_memory_utilization=0.5)
        await engine.start()
        try:
            state, seconds, weight_bytes = exporter.state("bench", 0), [], 0
            for number in range(WARM_UPS + times):
                # A store of its own each time: one that has the bytes would not write them again.
                store = StoreConfig(uri=f"file://{folder}/{number}")
                began = time.perf_counter()
                adapter = exporter.export("bench", state, number, store)
                exported = time.perf_counter() - began
                stages = {"export": exported, **await publish(engine, store, adapter)}
                stages["all"] = time.perf_counter() - began
                stages["add_lora"] = await bare_add_lora(engine, store, adapter, BARE_LORA_ID + number)
                seconds.append(stages)
                weight_bytes = adapter.weights.size
                remove(store)
                print(case.model, number, {name: round(1000 * value, 1) for name, value in stages.items()}, flush=True)
        finally:
            await engine.shutdown()
            exporter.close()
    return weight_bytes, seconds[WARM_UPS:]


async def publish(engine: EngineActor, store: StoreConfig, adapter: AdapterRef) -> dict[str, float]:
    """Seconds until the version serves, by stage, and of one token by it."""
    began = time.perf_counter()
    reply = await engine.publish(store=store, adapter=adapter)
    published = time.perf_counter()
    await engine.generate(
        version=adapter.label,
        requests=[GenerateRequest(id="0/0/0", prompt_tokens=list(range(5, 37)), seed=0)],
        sampling=SamplingConfig(max_response_tokens=1),
        batch_id="first",
    )
    return {**reply.seconds, "publish": published - began, "first token": time.perf_counter() - published}


async def bare_add_lora(engine: EngineActor, store: StoreConfig, adapter: AdapterRef, lora_id: int) -> float:
    """Seconds of vLLM's own call, from files in memory. The slot that it takes is the spare one."""
    # Imports vllm, which reads what the engine's start has set.
    from vllm.lora.request import LoRARequest

    vllm: Any = engine._started()._client._llm
    with TemporaryDirectory(dir=memory_folder()) as folder:
        download_adapter(open_store(store), adapter, Path(folder, "peft"))
        began = time.perf_counter()
        await vllm.add_lora(LoRARequest(f"bare-{lora_id}", lora_id, str(Path(folder, "peft"))))
        seconds = time.perf_counter() - began
    await vllm.remove_lora(lora_id)
    return seconds


def row(case: Case, weight_bytes: int, seconds: Sequence[Mapping[str, float]]) -> list[str]:
    medians = [median(each[name] for each in seconds) for name in STAGES]
    slowest = max(each["all"] for each in seconds)
    ratio = median(each["publish"] / each["add_lora"] for each in seconds)
    return [
        case.text,
        f"{weight_bytes / 2**20:.1f}",
        *(f"{1000 * value:.1f}" for value in medians),
        f"{1000 * slowest:.1f}",
        f"**{ratio:.2f}**",
    ]


async def main(arguments: argparse.Namespace) -> None:
    rows = []
    for name in arguments.cases:
        rows.append(row(CASES[name], *await measure(CASES[name], arguments.times)))
        print(table(["adapter", "MiB", *STAGES, "slowest of all", "publish / add_lora"], rows), flush=True)
    text = (
        f"Milliseconds; medians of {arguments.times} rounds after {WARM_UPS} unmeasured ones. Export: from the "
        "trainer's slot to three blobs in a local store, the trainer's probe included. Publish is read (the blobs, "
        "checked), load (vLLM's `add_lora` from memory), probe (two requests, adapter on and off) and the unloading "
        "of the version that leaves. First token: one request of 32 tokens. All: from the export to the first token. "
        "add_lora: vLLM's own call in the same engine, from files in memory. The engine runs eagerly."
    )
    body = f"{table(['adapter', 'MiB', *STAGES, 'slowest of all', 'publish / add_lora'], rows)}\n\n{text}"
    append_result(arguments.out, title="Publish latency", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = device_kind()
    parser.add_argument("--cases", nargs="+", choices=CASES, default=ON_A_GPU if kind == "gpu" else ON_A_CPU)
    parser.add_argument("--times", type=int, default=20, help="rounds measured")
    parser.add_argument("--out", type=Path, default=RESULTS / f"publish-{kind}.md")
    asyncio.run(main(parser.parse_args()))
