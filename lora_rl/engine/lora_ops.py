"""LoRA arithmetic for the CPU: one matmul per adapter in the batch.

vLLM's own (`vllm/lora/ops/torch_ops/lora_ops.py`) gathers A and B once per token: 128 tokens read them 128 times.
Axes: T tokens, I and O input and output width of the layer, R rank, S loaded adapters. `indices` [T] says which adapter
a token uses; -1 is none, and such a token's output stays as it is (vLLM's own applies the last slot to it).
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def bgmv_shrink(inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, scaling: float = 1.0) -> None:
    """output[t, :R] = scaling * A[indices[t]] · inputs[t], in the type of `output`. inputs [T, I], A [S, 1, R, I]."""
    for index, tokens in _tokens_of_adapters(indices):
        weight = _adapter(weights, index, output.dtype)
        output[tokens, : weight.shape[0]] = scaling * (inputs[tokens].to(output.dtype) @ weight.T)


def bgmv_expand(inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, add_inputs: bool = True) -> None:
    """output[t, :O] += B[indices[t]] · inputs[t], or = without `add_inputs`. inputs [T, R], weights B [S, 1, O, R].

    Layer and adapter may pad O differently: the common columns count.
    """
    width = min(weights.shape[-2], output.shape[1])
    _expand(inputs, weights, output[:, :width], indices, add_inputs)


def bgmv_expand_slice(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    indices: Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """`bgmv_expand` into the columns slice_offset to slice_offset + slice_size of `output`."""
    _expand(inputs, weights, output[:, slice_offset : slice_offset + slice_size], indices, add_inputs)


def install() -> None:
    """Puts these functions in the place of vLLM's in this process."""
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    # The sgmv functions for prefill call these through their module.
    for module in (lora_ops, torch_ops, punica_cpu):
        for function in (bgmv_shrink, bgmv_expand, bgmv_expand_slice):
            setattr(module, function.__name__, function)


def _expand(inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, add_inputs: bool) -> None:
    for index, tokens in _tokens_of_adapters(indices):
        weight = _adapter(weights, index, output.dtype)[: output.shape[1]]
        update = inputs[tokens].to(output.dtype) @ weight.T
        if add_inputs:
            output[tokens] += update
        else:
            output[tokens] = update


def _tokens_of_adapters(indices: Tensor) -> Iterator[tuple[int, Tensor | slice]]:
    present = torch.unique(indices).tolist()
    for index in present:
        if index >= 0:
            yield index, slice(None) if len(present) == 1 else (indices == index).nonzero().squeeze(1)


def _adapter(weights: Tensor, index: int, dtype: torch.dtype) -> Tensor:
    weight = weights[index]
    return (weight.squeeze(0) if weight.dim() == 3 else weight).to(dtype)
