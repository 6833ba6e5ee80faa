"""Rollout tokens a second of the frozen base, of one adapter, and of four adapters in one batch.

    python -m benchmarks.rollout [--model NAME] [--requests N] [--tokens N] [--times N] [--eager] [--out FILE]

Random weights of a Qwen3 shape: no answer ends early, all have the full length. The engine is the product's, in a few
CUDA graphs and without compilation, or eager; requests go to vLLM as a rollout's do. About two minutes for qwen3-8b on
a GPU; `--model tiny-qwen3 --dtype float32` runs on a CPU.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.report import RESULTS, append_result, device_kind, table
from benchmarks.served import GRAPH_SIZES, Case, Exporter, checkpoint, make_engine, memory_folder
from lora_rl.config import SamplingConfig, StoreConfig
from lora_rl.engine import GenerateRequest
from lora_rl.engine.actor import EngineActor
from lora_rl.store import AdapterRef

ADAPTERS = 4
PROMPT_TOKENS = 64


async def measure(arguments: argparse.Namespace, case: Case) -> dict[str, list[tuple[int, float]]]:
    """Tokens and seconds of each rollout, by what it ran under."""
    path = checkpoint(case)
    with TemporaryDirectory(dir=memory_folder()) as folder:
        store = StoreConfig(uri=f"file://{folder}")
        exporter = Exporter(case, path, store)
        adapters = [exporter.export(name, exporter.state(name, seed), 0, store) for seed, name in enumerate("abcd")]
        exporter.close()
        began = time.perf_counter()
        engine = make_engine(
            case,
            path,
            slots=ADAPTERS,
            max_model_len=PROMPT_TOKENS + arguments.tokens,
            max_num_seqs=arguments.requests,
            enforce_eager=arguments.eager,
            gpu_memory_utilization=0.5,
            cuda_graph_sizes=() if arguments.eager else GRAPH_SIZES,
        )
        await engine.start()
        print(f"the engine started in {time.perf_counter() - began:.0f} s", flush=True)
        try:
            for adapter in adapters:
                await engine.publish(store=store, adapter=adapter)
            under = {"base alone": [], "1 adapter": adapters[:1], f"{ADAPTERS} adapters": adapters}
            results: dict[str, list[tuple[int, float]]] = {name: [] for name in under}
            # They take turns, and the first round warms up.
            for number in range(1 + arguments.times):
                for name, serving in under.items():
                    tokens, seconds = await roll_out(engine, serving, arguments, seed=number)
                    print(f"{name}: {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} a second", flush=True)
                    if number > 0:
                        results[name].append((tokens, seconds))
        finally:
            await engine.shutdown()
    return results


async def roll_out(
    engine: EngineActor, adapters: Sequence[AdapterRef], arguments: argparse.Namespace, *, seed: int
) -> tuple[int, float]:
    """Tokens and seconds of one batch, dealt to `adapters` in turn; under none of them it is the base's."""
    # Imports vllm, which reads what the engine's start has set.
    from lora_rl.engine.serving import _lora_request, _sampling_params
    from lora_rl.engine.vllm_client import EngineRequest

    draw, client = random.Random(seed), engine._started()._client
    sampling = SamplingConfig(max_response_tokens=arguments.tokens)
    stops = client.stops_of(sampling.stop)
    requests = []
    for number in range(arguments.requests):
        prompt = draw.choices(range(5, 500), k=PROMPT_TOKENS)
        request = GenerateRequest(id=f"0/{number}/0", prompt_tokens=prompt, seed=draw.getrandbits(62))
        version = engine._versions.find(adapters[number % len(adapters)].label) if adapters else None
        requests.append(
            EngineRequest(
                prompt_tokens=prompt,
                params=_sampling_params(request, sampling, stops),
                lora=_lora_request(version.ref, version.lora_id) if version else None,
                salt=f"{seed}/{number}",
            )
        )
    began = time.perf_counter()
    outputs = await client.run_batch(requests)
    return sum(len(output.outputs[0].token_ids) for output in outputs), time.perf_counter() - began


async def main(arguments: argparse.Namespace) -> None:
    case = Case(model=arguments.model, dtype=arguments.dtype, rank=arguments.rank)
    results = await measure(arguments, case)
    rates = {name: median(tokens / seconds for tokens, seconds in each) for name, each in results.items()}
    rows = []
    for name, each in results.items():
        seconds = [seconds for _, seconds in each]
        share = rates[name] / rates["base alone"]
        rows.append(
            [
                name,
                f"{each[0][0]}",
                f"{median(seconds):.2f}",
                f"{max(seconds):.2f}",
                f"{rates[name]:.0f}",
                f"{share:.0%}",
            ]
        )
    how = "eager" if arguments.eager else f"in CUDA graphs of {', '.join(map(str, GRAPH_SIZES))} tokens"
    header = ["under", "tokens", "seconds, median", "seconds, slowest", "tokens/s, median", "of base"]
    body = (
        f"{case.text} on all linear layers, {how}; {arguments.requests} requests of {PROMPT_TOKENS} prompt tokens and "
        f"{arguments.tokens} answer tokens, with log-probabilities and a seed each. {arguments.times} rollouts of each "
        f"after one unmeasured, in turn.\n\n{table(header, rows)}"
    )
    append_result(arguments.out, title="Rollout throughput", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--times", type=int, default=3, help="rollouts measured of each")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--out", type=Path, default=RESULTS / f"rollout-{device_kind()}.md")
    asyncio.run(main(parser.parse_args()))
