"""LoRA reinforcement learning as a resumable workflow: Megatron-core trains, vLLM serves, each step is committed."""

__version__ = "0.1.0"
