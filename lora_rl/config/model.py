"""The base model."""

from typing import Literal

from pydantic import Field

from lora_rl.config.base import Section
from lora_rl.config.uri import Uri


class ModelConfig(Section):
    name: Uri = Field(min_length=1)
    """A directory in Hugging Face format, or a name that `lora-rl models list` shows."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Type of the frozen base weights and of what flows between them, in the trainer and in the engine. In float16 the
    two agree eight times better than in bfloat16; it ends at 65504, which some models exceed."""
