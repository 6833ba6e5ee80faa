"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`); nothing without an `EngineActor`."""

import os

OWNER = "LORA_RL_ENGINE_OWNER"
"""Environment variable with the process id of the `EngineActor`."""

FAST_CPU_LORA = "LORA_RL_FAST_CPU_LORA"
"""Environment variable: `1` takes our LoRA arithmetic on a CPU."""


def register() -> None:
    """Ties an engine process to its parent; installs how LoRA is loaded and computed, and how sums are rounded.

    May be called more than once.
    """
    owner = os.environ.get(OWNER)
    if owner is None:
        return
    import torch
    from vllm.platforms import current_platform

    # Parts of a long sum would be rounded to half precision before they are added: the trainer has this off too.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if owner != str(os.getpid()):
        from lora_rl.engine.orphans import die_with_parent

        die_with_parent()
    from lora_rl.engine import mapped_loras

    mapped_loras.install()
    if current_platform.is_cpu():
        from lora_rl.engine import expert_lora

        expert_lora.install()
    if os.environ.get(FAST_CPU_LORA) == "1" and current_platform.is_cpu():
        from lora_rl.engine.lora_ops import install

        install()
