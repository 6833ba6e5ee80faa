"""What vLLM and its processes read from environment variables."""

import os

from lora_rl.config import EngineConfig
from lora_rl.engine.plugin import FAST_CPU_LORA, OWNER


def set_environment(engine: EngineConfig) -> None:
    """Makes this process fit to be the parent of vLLM's. Must come before the first import of vllm."""
    threads = str(engine.threads)
    os.environ |= {
        OWNER: str(os.getpid()),
        FAST_CPU_LORA: str(int(engine.fast_cpu_lora)),
        # The number of threads decides the order of sums, so neither load nor the number of cores may change it.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Waiting threads sleep: when they spin, a busy machine makes a rollout 15 times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Graphs of our sizes break at attention, which then knows each prompt's length. Whole graphs of prefills are
        # captured with one token a request: FlashAttention 3 takes them for decoding, and drops the causal mask.
        "VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(bool(engine.cuda_graph_sizes))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # all of it in one file, beside the tracebacks
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    # Compiling FlashInfer's sampler takes 95 s at the first start.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
