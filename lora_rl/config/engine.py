"""The vLLM rollout engine."""

from pydantic import Field, PositiveInt

from lora_rl.config.base import Section


class EngineConfig(Section):
    replicas: int = Field(default=1, gt=0)
    """Engines that share the rollouts."""

    tensor_parallel: int = Field(default=1, gt=0)
    """GPUs of one engine."""

    max_model_len: int = Field(default=2048, gt=0)
    """Prompt and response tokens together."""

    max_num_seqs: int = Field(default=128, gt=0)
    """Requests decoded at a time."""

    kv_cache_gib: float = Field(default=2.0, gt=0)
    """Memory for the KV cache on a CPU, of each process of an engine (`tensor_parallel`)."""

    gpu_kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory for the KV cache on each GPU of an engine. Null for what `gpu_memory_utilization` leaves: vLLM measures
    that as it starts, and fails where another process frees memory of the GPU meanwhile."""

    gpu_memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    """Share of a GPU's memory that must be free as an engine starts; it takes as much if `gpu_kv_cache_gib` is null."""

    resident_versions: int = Field(default=2, gt=1)
    """Adapter versions kept loaded: older ones finish their requests, then leave."""

    enforce_eager: bool = True
    """No compilation: starts faster, decodes slower on GPUs."""

    cuda_graph_sizes: tuple[PositiveInt, ...] = ()
    """Sizes of forward passes that run as CUDA graphs, in tokens: one for each request that decodes, and short prompts.
    Without compilation: starts in seconds what takes minutes when vLLM chooses. Empty for vLLM's choice. Needs
    `enforce_eager: false`."""

    fast_cpu_lora: bool = True
    """Our LoRA kernels for the CPU in place of the shipped ones; same outputs."""

    threads: int = Field(default=2, gt=0)
    """CPU threads of the engine."""

    probe_tolerance: float = Field(default=0.3, gt=0)
    """A publish is refused when the probe's log-probabilities, engine against trainer, differ by more on average."""
