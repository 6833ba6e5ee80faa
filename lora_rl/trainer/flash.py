"""Fused causal attention over sequences end to end, on a GPU in half precision.

F rows, H heads, G key heads, E head size.
"""

import functools
import inspect
import logging
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("lora_rl.trainer")

HOPPER = 9
"""Compute capability of the first card that FlashAttention 4 is made for."""

FLASH_4_SIZES = (32, 64, 128)
"""Head sizes that its forward and backward passes were tried with. At 16 its compiler fails in the backward pass."""


def causal_varlen_attention(
    query_FHE: Tensor,
    key_FGE: Tensor,
    value_FGE: Tensor,
    *,
    ends: tuple[Tensor, Tensor],
    most: tuple[int, int],
    scale: float,
) -> Tensor:
    """Attention output [F, H, E]; the last query of each sequence stands at its last key.

    `ends` are the cumulative numbers of queries and keys from 0, int32; `most` the largest numbers.
    """
    kernel = _flash_4() if query_FHE.shape[-1] in FLASH_4_SIZES else None
    if kernel is None:
        return _flash_2(query_FHE, key_FGE, value_FGE, ends, most, scale)
    output_FHE, _ = kernel(
        query_FHE,
        key_FGE,
        value_FGE,
        cu_seqlens_q=ends[0],
        cu_seqlens_k=ends[1],
        max_seqlen_q=most[0],
        max_seqlen_k=most[1],
        softmax_scale=scale,
        causal=True,
    )
    return output_FHE


@functools.cache
def _flash_4() -> Any:
    """FlashAttention 4, of which vLLM brings a copy: faster than torch's version 2 on the cards it is made for."""
    if torch.cuda.get_device_capability()[0] < HOPPER:
        return None
    try:
        from vllm.vllm_flash_attn.cute import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:  # RuntimeError: its compiler has no part for this CUDA version
        logger.warning("FlashAttention 4 cannot be used (%s): torch's version 2 is, at about half the speed", error)
        return None
    return flash_attn_varlen_func


def _flash_2(
    query: Tensor, key: Tensor, value: Tensor, ends: tuple[Tensor, Tensor], most: tuple[int, int], scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.11 has neither grouped heads nor a window here.
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    else:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    attention: Any = varlen_attn
    return attention(query, key, value, *ends, *most, scale=scale, **options)
