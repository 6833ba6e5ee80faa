"""What stands between the matrix products of a layer, as one kernel each on a GPU.

T packed rows, H heads, E head size, F feed-forward width.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def fused_on_cuda(function: Function) -> Function:
    """`function` of tensors with as many rows, compiled into fused kernels on a GPU; as it stands elsewhere.

    The number of rows alone may differ between calls: with any other size unknown, kernels are several times slower.
    """
    compiled = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(first: Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            return function(first, *rest)
        for argument in (first, *rest):
            if isinstance(argument, Tensor) and len(argument) == len(first):
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return compiled(first, *rest)

    return call  # pyright: ignore[reportReturnType]


@fused_on_cuda
def swiglu(gate_up_TF: Tensor) -> Tensor:
    """silu(gate) * up of rows [gate | up] (arXiv:2002.05202)."""
    gate, up = gate_up_TF.chunk(2, -1)
    return F.silu(gate) * up


@fused_on_cuda
def norm_and_rotate(heads_THE: Tensor, norm_E: Tensor | None, eps: float, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Root-mean-square norm of each head where it has one, then the rotary embedding (arXiv:2104.09864)."""
    if norm_E is not None:
        heads_THE = F.rms_norm(heads_THE, norm_E.shape, norm_E, eps)
    first, second = heads_THE.chunk(2, -1)
    turned_THE = torch.cat([-second, first], -1)
    return heads_THE * cos_TE[:, None] + turned_THE * sin_TE[:, None]
