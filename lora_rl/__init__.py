"""LoRA reinforcement learning as a resumable workflow: Megatron-core trains, vLLM serves, every step is committed to object storage."""

__version__ = "0.1.0"
