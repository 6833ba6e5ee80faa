"""How long a hot load takes by stage, from the trainer's slot to the first token, beside vLLM's own `add_lora`.

    python -m benchmarks.publish [--cases NAME ...] [--times N] [--out FILE]

Cases: `tiny` (random, rank 4, float32), `smollm2` (SmolLM2-135M, rank 16), `qwen3-8b` (random weights of that shape,
rank 32). Trainer and engine are in one process, on one device. Each time an adapter is handed over, staged, exported,
then published as a new version and asked for one token. An engine without our plugin then loads the same files from
memory by `add_lora`. On a GPU the engine runs in a few CUDA graphs, unless `--eager`. About two minutes a case on two
cores or on a GPU.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import RESULTS, append_result, device_kind, table
from benchmarks.served import (
    GRAPH_SIZES,
    Case,
    Exporter,
    checkpoint,
    make_engine,
    make_engine_config,
    memory_folder,
    remove,
)
from lora_rl.config import StoreConfig
from lora_rl.config.run import ENGINE_MAX_RANKS
from lora_rl.engine.actor import EngineActor
from lora_rl.engine.plugin import OWNER
from lora_rl.store import AdapterRef, BlobRef, download_adapter, open_store

WARM_UPS = 5
"""Memory is used again from the third version on, and its pages are locked then."""
CASES = {
    "tiny": Case(model="tiny-qwen3", dtype="float32", rank=4),
    "smollm2": Case(model="smollm2-135m-instruct", dtype="bfloat16", rank=16),
    "qwen3-8b": Case(model="qwen3-8b", dtype="bfloat16", rank=32),
}
ON_A_CPU, ON_A_GPU = ("tiny", "smollm2"), ("smollm2", "qwen3-8b")
STAGES = ("export", "transfer", "load", "first_token", "to first token", "base_token", "store", "publish", "add_lora")
HEADER = ("adapter", "MiB", *STAGES, "slowest", "load / add_lora")


async def measure(case: Case, times: int, graphs: Mapping[str, Any]) -> tuple[int, list[dict[str, float]]]:
    """Bytes of the adapter's weights, and the seconds of each round by stage."""
    path = checkpoint(case)
    with TemporaryDirectory(dir=memory_folder()) as folder:
        peft = Path(folder, "peft")
        states = StoreConfig(uri=f"file://{folder}/states")
        exporter = Exporter(case, path, states)
        engine = make_engine(case, path, max_model_len=512, gpu_memory_utilization=0.5, **graphs)
        await engine.start()
        try:
            state, seconds, weight_bytes = exporter.state("bench", 0), [], 0
            for number in range(WARM_UPS + times):
                # A store of its own each time: one that has the bytes would not write them again.
                store = StoreConfig(uri=f"file://{folder}/{number}")
                stages, adapter = await publish(engine, exporter, state, number, store)
                seconds.append(stages)
                weight_bytes = adapter.weights.size
                if number + 1 == WARM_UPS + times:
                    download_adapter(open_store(store), adapter, peft)
                remove(store)
                print(case.model, number, {name: round(1000 * value, 1) for name, value in stages.items()}, flush=True)
        finally:
            await engine.shutdown()
            exporter.close()
        shipped = await add_lora_seconds(case, path, peft, times, graphs)
        return weight_bytes, [each | {"add_lora": bare} for each, bare in zip(seconds[WARM_UPS:], shipped, strict=True)]


async def publish(
    engine: EngineActor, exporter: Exporter, state: BlobRef, number: int, store: StoreConfig
) -> tuple[dict[str, float], AdapterRef]:
    """Seconds of one version's way by stage, and its export.

    A run exports while the engine loads, in another process; here they would take turns on the interpreter.
    """
    began = time.perf_counter()
    handed_over = exporter.hand_over("bench", state, number)
    stages = {"export": time.perf_counter() - began}
    if handed_over is None:
        raise OSError("shared memory: no room for the adapter; see the log")
    await engine.stage(label=f"bench@{number}", directory=handed_over)
    staged = time.perf_counter()
    adapter = await asyncio.to_thread(exporter.export, "bench", state, number, store, handed_over)
    stages["store"] = time.perf_counter() - staged
    published = time.perf_counter()
    reply = await engine.publish(store=store, adapter=adapter)
    stages |= {**reply.seconds, "publish": time.perf_counter() - published}
    stages["to first token"] = sum(stages[stage] for stage in ("export", "transfer", "load", "first_token"))
    stages["base_token"] = stages["probe"] - stages["first_token"]
    return stages, adapter


async def add_lora_seconds(case: Case, path: Path, peft: Path, times: int, graphs: Mapping[str, Any]) -> list[float]:
    """Seconds of vLLM's own call, in an engine without our plugin, from files in memory."""
    os.environ.pop(OWNER)
    # Imports vllm, which reads what the first engine's start has set.
    from vllm.lora.request import LoRARequest

    from lora_rl.engine.vllm_client import start_vllm

    config = make_engine_config(max_model_len=512, gpu_memory_utilization=0.5, **graphs)
    max_rank = next(rank for rank in ENGINE_MAX_RANKS if rank >= case.rank)
    vllm = start_vllm(
        model_path=str(path), dtype=case.dtype, engine=config, max_rank=max_rank, capacity=3, seed=0, sleeps=False
    )
    seconds = []
    for number in range(1, WARM_UPS + times + 1):
        began = time.perf_counter()
        await vllm.add_lora(LoRARequest(f"shipped-{number}", number, str(peft)))
        seconds.append(time.perf_counter() - began)
        await vllm.remove_lora(number)
    vllm.shutdown()
    return seconds[WARM_UPS:]


def row(case: Case, weight_bytes: int, seconds: Sequence[Mapping[str, float]]) -> list[str]:
    medians = [median(each[name] for each in seconds) for name in STAGES]
    slowest = max(each["to first token"] for each in seconds)
    ratio = median(each["load"] for each in seconds) / median(each["add_lora"] for each in seconds)
    return [
        case.text,
        f"{weight_bytes / 2**20:.1f}",
        *(f"{1000 * value:.1f}" for value in medians),
        f"{1000 * slowest:.1f}",
        f"**{ratio:.2f}**",
    ]


async def main(arguments: argparse.Namespace) -> None:
    eager = arguments.eager or device_kind() == "cpu"
    graphs = {} if eager else {"enforce_eager": False, "cuda_graph_sizes": GRAPH_SIZES}
    text = (
        f"Milliseconds; medians of {arguments.times} rounds after {WARM_UPS} unmeasured ones. Export: from the "
        "trainer's slot to memory that processes share, cast. Load: into vLLM's slot. Transfer: what the digest, taken "
        "meanwhile, lasts longer. First token: one by the new version, the first half of the probe. To first token: "
        "these four in a row; slowest: the largest of these. Base token: the other half, the same token by the frozen "
        "base, so what any token costs here. Store: the export's blobs and digests, and the trainer's "
        "probe, with a store in memory; in a run beside the load. Publish: finding the staged version, and the whole "
        "probe. add_lora: vLLM's own call in an engine without our plugin, from files in memory. Engines run "
        + ("eagerly." if eager else f"with CUDA graphs of {', '.join(map(str, GRAPH_SIZES))} tokens.")
    )
    for name in arguments.cases:
        measured = row(CASES[name], *await measure(CASES[name], arguments.times, graphs))
        rows = table(HEADER, [measured])
        append_result(arguments.out, title="Publish latency", body=f"{rows}\n\n{text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = device_kind()
    parser.add_argument("--cases", nargs="+", choices=CASES, default=ON_A_GPU if kind == "gpu" else ON_A_CPU)
    parser.add_argument("--times", type=int, default=20, help="rounds measured")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--out", type=Path, default=RESULTS / f"publish-{kind}.md")
    asyncio.run(main(parser.parse_args()))
