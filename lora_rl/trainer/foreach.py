"""Torch's operations on many tensors at once, which torch does not list as public.

On CUDA each is a few launches where all tensors are dense and, pair by pair, have the same strides; a single pair that
does not makes it one launch a tensor. None takes an empty list.
"""

from typing import Any

import torch

foreach_copy_: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]
foreach_mul: Any = torch._foreach_mul  # pyright: ignore[reportPrivateImportUsage]
foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
foreach_norm: Any = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
