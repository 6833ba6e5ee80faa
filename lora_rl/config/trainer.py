"""The Megatron trainer."""

from pydantic import Field

from lora_rl.config.base import Section


class TrainerConfig(Section):
    tensor_parallel: int = Field(default=1, gt=0)
    """Processes that share each layer."""

    pipeline_parallel: int = Field(default=1, gt=0)
    """Stages that the layers are split into, one after the other."""

    data_parallel: int = Field(default=1, gt=0)
    """Copies of the model, each of which takes a share of the micro-batches."""

    expert_parallel: int = Field(default=1, gt=0)
    """Copies that share the experts of each layer; must divide data_parallel, and the model's number of experts."""

    slots: int = Field(default=1, gt=0)
    """Adapters S held at a time."""

    max_rank: int = Field(default=64, gt=0)
    """Largest rank a slot can hold."""

    max_tokens_per_gpu: int = Field(default=4096, gt=0)
    """Token budget of one packed micro-batch."""

    recompute: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    threads: int = Field(default=1, gt=0)
    """CPU threads of each trainer process."""

    max_skipped_steps: int = Field(default=3, gt=0)
    """Steps in a row whose gradient is not finite before the run stops."""

    @property
    def world_size(self) -> int:
        """Processes of the trainer, one a GPU: tensor_parallel · pipeline_parallel · data_parallel."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
