"""How long a hot load takes by stage, beside vLLM's own `add_lora` in the same engine.

    python -m benchmarks.publish [--times N]

The random tiny Qwen3 with rank 4 in float32, and SmolLM2-135M with rank 16 in bfloat16, on all linear layers. Each time
one adapter is published as a new version, and vLLM alone loads the same files from a folder. Takes about two minutes on
two cores.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import RESULTS, append_result, table
from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.models import resolve_model
from lora_rl.store import AdapterRef, download_adapter, open_store
from tests.peft_adapters import PeftExporter

WARM_UPS = 2
BARE_LORA_ID = 1_000_000
"""vLLM's numbers for adapters that it loads without us; above all that the engine gives out."""
STAGES = ("read", "load", "probe")


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    dtype: str
    rank: int


CASES = (
    Case(model="tiny-qwen3", dtype="float32", rank=4),
    Case(model="smollm2-135m-instruct", dtype="bfloat16", rank=16),
)


async def measure(case: Case, times: int) -> tuple[int, list[dict[str, float]]]:
    """Bytes of the adapter's weights, and the seconds of each publish by stage."""
    model = resolve_model(case.model)
    with TemporaryDirectory() as folder:
        store = StoreConfig(uri=f"file://{folder}/store")
        adapter = PeftExporter(model, store).export("bench", 0, scale=0.01, rank=case.rank)
        download_adapter(open_store(store), adapter, Path(folder, "peft"))
        # The untrained adapter's effect is large, and rounding in bfloat16 with it.
        config = EngineConfig(max_model_len=512, kv_cache_gib=0.5, probe_tolerance=2.0)
        engine = EngineActor(model_path=str(model), dtype=case.dtype, engine=config, max_rank=case.rank, slots=1)
        await engine.start()
        try:
            seconds = [
                await publish(engine, store, replace(adapter, version=number))
                | {"vllm": await bare_add_lora(engine, Path(folder, "peft"), BARE_LORA_ID + number)}
                for number in range(WARM_UPS + times)
            ]
        finally:
            await engine.shutdown()
    return adapter.weights.size, seconds[WARM_UPS:]


async def publish(engine: EngineActor, store: StoreConfig, adapter: AdapterRef) -> dict[str, float]:
    started = time.perf_counter()
    reply = await engine.publish(store=store, adapter=adapter)
    return {**reply.seconds, "total": time.perf_counter() - started}


async def bare_add_lora(engine: EngineActor, peft: Path, lora_id: int) -> float:
    """Seconds of vLLM's own call. The slot that it takes is the spare one beside the resident versions."""
    # Imports vllm, which reads what the engine's start has set.
    from vllm.lora.request import LoRARequest

    vllm: Any = engine._started()._client._llm
    started = time.perf_counter()
    await vllm.add_lora(LoRARequest(f"bare-{lora_id}", lora_id, str(peft)))
    seconds = time.perf_counter() - started
    await vllm.remove_lora(lora_id)
    return seconds


def row(case: Case, weight_bytes: int, seconds: Sequence[Mapping[str, float]]) -> list[str]:
    medians = {name: median(each[name] for each in seconds) for name in (*STAGES, "total", "vllm")}
    ratio = median(each["total"] / each["vllm"] for each in seconds)
    return [
        f"{case.model}, rank {case.rank}, {case.dtype}",
        f"{weight_bytes / 2**20:.2f}",
        *(f"{1000 * medians[name]:.1f}" for name in (*STAGES, "total", "vllm")),
        f"**{ratio:.2f}**",
    ]


async def main(times: int) -> None:
    rows = [row(case, *await measure(case, times)) for case in CASES]
    header = ["adapter", "MiB", *STAGES, "publish", "vLLM's add_lora", "publish / add_lora"]
    body = (
        f"{table(header, rows)}\n\nMilliseconds; medians of {times} publishes after {WARM_UPS} unmeasured ones. Read: "
        "three blobs from a local store, with digests and shapes checked. Load: vLLM's `add_lora` from memory. Probe: "
        "two requests, adapter on and off. The publish holds all of them and the unloading of the version that leaves."
    )
    append_result(RESULTS / "publish-cpu.md", title="Publish latency", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="publishes measured")
    asyncio.run(main(parser.parse_args().times))
