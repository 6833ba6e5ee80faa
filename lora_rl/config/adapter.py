"""The LoRA adapter that is trained, and how."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from lora_rl.config.base import Section
from lora_rl.config.uri import Uri

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")]
"""A name that cannot leave its folder: letters, digits, `_`, `-`, and `.` but not first."""

DECIDED_BY_INIT = frozenset({"rank", "alpha", "rslora", "target_modules"})
"""Fields of an adapter that a PEFT directory has too."""


class OptimizerConfig(Section):
    """AdamW with its own step clock per adapter."""

    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate. For LoRA about ten times that of full fine-tuning."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay after the warm-up."""

    warmup_samples: int = Field(default=0, ge=0)
    """Samples over which the rate rises linearly from 0 to `lr`."""

    decay_samples: int | None = Field(default=None, gt=0)
    """Samples after which `linear` and `cosine` reach `min_lr_ratio`; required by both."""

    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate over `lr`."""

    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""

    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""

    clip_grad_norm: float | None = Field(default=1.0, gt=0)
    """Limit of the adapter's gradient norm; null for none."""


class AdapterConfig(Section):
    name: Name = "default"
    """Name in the store, in requests and in metrics."""

    type: Literal["canonical_lora", "lora"] = "canonical_lora"
    """`canonical_lora`: one A and B for each projection, as in PEFT. `lora`: one A for q, k, v and one for gate, up."""

    rank: int = Field(default=32, gt=0)
    """Rank R of the update."""

    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank (by alpha / sqrt(rank) with `rslora`)."""

    rslora: bool = False
    """Rank-stabilised scaling (arXiv:2312.03732)."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A during training. It costs one more forward pass: the old policy's, without dropout."""

    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Projections to adapt, by Hugging Face or Megatron name; wildcards as in `*.layers.0.*`."""

    exclude_modules: tuple[str, ...] = ()
    """Projections left out of `target_modules`, named alike."""

    only_train: tuple[str, ...] | None = None
    """Projections, named alike, or tensors (`lora_B`, `*.q_proj.lora_A`) that learn, the rest stays; null for all."""

    init: Uri | None = None
    """PEFT adapter to start from (directory or URI), which decides rank, alpha, rslora and target_modules where these
    are not given; null for a fresh one."""

    optimizer: OptimizerConfig = OptimizerConfig()

    @field_validator("target_modules", mode="before")
    @classmethod
    def names_stand_in_a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all-linear":
            raise ValueError(f"must be all-linear or a list, as in [{value}]")
        return value

    @property
    def left_to_init(self) -> frozenset[str]:
        """Fields that the adapter at `init` decides, since the config does not give them."""
        return DECIDED_BY_INIT - self.model_fields_set if self.init else frozenset()

    @property
    def scaling(self) -> float:
        """Factor on B·A·x."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
