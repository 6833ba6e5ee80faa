"""How large the check is: the real small model on a GPU, tiny ones anywhere."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lora_rl.home import home
from lora_rl.models import resolve_model
from lora_rl.models.tiny import TinyShape, make_tiny_llama, make_tiny_qwen2, make_tiny_qwen3, make_tiny_qwen3_moe

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "qwen3": make_tiny_qwen3,
    "qwen2": make_tiny_qwen2,
    "llama": make_tiny_llama,
    "qwen3_moe": make_tiny_qwen3_moe,
}
DENSE = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True, kw_only=True)
class Scale:
    tiny: bool

    @property
    def model_name(self) -> str:
        return "tiny-qwen3" if self.tiny else "smollm2-135m-instruct"

    @property
    def model(self) -> Path:
        """The model of the sections that serve and learn, made where it is missing."""
        return resolve_model(self.model_name)

    @property
    def dtype(self) -> str:
        """vLLM on a GPU has fast attention in half precision alone; tiny models are compared in float32."""
        return "float32" if self.tiny else "bfloat16"

    def family(self, name: str) -> Path:
        """A random model of two layers."""
        path = home() / "models" / f"check-{name}"
        return path if path.exists() else FAMILIES[name](path)

    @property
    def splits_in_two(self) -> Path:
        """A random model whose heads two GPUs can share, wide enough for their attention kernels."""
        if self.tiny:
            return self.model
        path = home() / "models" / "check-wide"
        shape = TinyShape(hidden=512, layers=4, heads=8, kv_heads=4, head_dim=64, ffn=1024)
        return path if path.exists() else make_tiny_qwen3(path, shape=shape)

    @property
    def scratch(self) -> Path:
        """A folder for stores; gone with the check."""
        path = home() / "scratch" / str(os.getpid())
        path.mkdir(parents=True, exist_ok=True)
        return path
