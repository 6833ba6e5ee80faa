"""The Triton kernels without a GPU: in Triton's interpreter, and compiled for one."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lora_rl.trainer import row_kernels
from lora_rl.trainer.lora_rows import TILE_ROWS

ROOT = Path(__file__).parents[3]


def test_the_kernel_adds_what_the_loop_adds():
    # The interpreter must be on before Triton is imported: in a process of its own.
    code = """
        import torch
        from lora_rl.trainer.lora_rows import Routing, Span, SpanWeights, add_expanded_
        from lora_rl.trainer.row_kernels import add_expanded_ as by_kernel

        torch.manual_seed(0)
        stops = (0, 1, 130, 300)
        spans = tuple(Span(slot=slot, start=stops[slot], stop=stops[slot + 1]) for slot in range(3))
        routing = Routing.of(spans, torch.device("cpu"))
        # Inner widths below, at and above one step of the kernel; columns that fill no whole tile.
        for heights, columns in (((3, 16, 16), 130), ((64, 64, 64), 128), ((96, 48, 80), 200)):
            weights = SpanWeights(of_span=[torch.randn(height, columns) for height in heights])
            down, before = torch.randn(300, max(heights)), torch.randn(300, columns)
            for span, height in zip(spans, heights):
                down[span.rows, height:] = 0
            looped, kernel = before.clone(), before.clone()
            add_expanded_(looped, down, weights, routing)
            by_kernel(kernel, down, weights.stacked_SQK, routing.tiles_X3)
            print((looped - kernel).abs().max().item(), (looped - before).abs().max().item())
    """
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    differences = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(differences) == 3
    assert all(between < 1e-4 and added > 1 for between, added in differences)


@pytest.mark.parametrize("inner", [16, 64])
def test_the_kernel_compiles_for_a_hopper_card(inner: int):
    types = dict.fromkeys(("out_TK", "down_TQ", "weights_SQK"), "*bf16") | {"tiles_X3": "*i32"}
    numbers = ("num_inner", "num_columns", "out_stride", "down_stride", "weights_stride", "weight_stride")
    sizes = {"ROWS": TILE_ROWS, "COLUMNS": row_kernels.TILE_COLUMNS, "INNER": inner}
    signature = types | dict.fromkeys(numbers, "i32") | dict.fromkeys(sizes, "constexpr")
    source = ASTSource(fn=row_kernels._add_expanded, signature=signature, constexprs=sizes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": row_kernels.NUM_WARPS})
    assert "mma" in compiled.asm["ptx"], "its product does not run on the tensor cores"
    assert compiled.asm["cubin"]
