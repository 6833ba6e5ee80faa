"""Tensors as the bytes of a safetensors file (https://github.com/huggingface/safetensors#format).

The library's own writer copies twice, and looks at every pair of tensors for shared memory.
"""

import json
import struct
from collections.abc import Mapping

import torch
from torch import Tensor

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def encode_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A whole file of CPU tensors of one type, sorted by name: the very bytes that the library gives."""
    ordered = dict(sorted(tensors.items()))
    dtypes = {tensor.dtype for tensor in ordered.values()} or {torch.float32}
    if len(dtypes) > 1:
        raise ValueError(f"tensors of {', '.join(sorted(map(str, dtypes)))}: all must have one type")
    head = header(ordered, dtypes.pop(), metadata)
    return b"".join([head, *(tensor.flatten().view(torch.uint8).numpy().data for tensor in ordered.values())])


def header(tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: Mapping[str, str]) -> bytes:
    """What comes before the tensors, one after the other in `dtype`; padded so that they begin at a multiple of 8."""
    entries, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * dtype.itemsize
        entries[name] = {"dtype": TYPES[dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": metadata} | entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
