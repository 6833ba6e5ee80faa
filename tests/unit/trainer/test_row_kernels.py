"""The Triton kernels without a GPU: in Triton's interpreter, and compiled for one."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lora_rl.trainer import row_kernels
from lora_rl.trainer.lora_rows import TILE_ROWS

ROOT = Path(__file__).parents[3]
MOST_SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on a Hopper card."""


def test_the_kernels_give_what_the_loops_give():
    code = """
        import torch
        from lora_rl.trainer import row_kernels
        from lora_rl.trainer.lora_rows import Routing, Span, SpanWeights, add_expanded_, outer, project

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
            row_kernels.add_expanded_(kernel, down, weights.stacked_SQK, routing.tiles_X3)
            print((looped - kernel).abs().max().item(), (looped - before).abs().max().item())
            # Rows side by side, one below the other, and all the same, as the gradient of a sum is.
            same, gradient = before[:1].expand(300, -1), torch.ones(()).expand(300, columns)
            for rows in (before, before.T.contiguous().T, same, gradient):
                looped = project(rows, weights, routing)
                kernel = row_kernels.project(rows, weights.stacked_SQK, routing.tiles_X3)
                print((looped - kernel).abs().max().item(), looped.abs().max().item())
                # What is below a span's own height is zero, and is to be written: there is NaN before.
                looped = outer(down, rows, routing, heights)
                kernel = torch.full_like(looped, torch.nan)
                row_kernels.write_outer(kernel, down, rows, routing.bounds((True, True, True)))
                print((looped - kernel).abs().max().item(), looped.abs().max().item())
                block = torch.full((3, columns - 30, 2), torch.nan)
                row_kernels.write_outer(block.mT, down[:, 1:3], rows[:, 30:], routing.bounds((True, False, True)))
                looped = looped[:, 1:3, 30:].mT * torch.tensor([1, 0, 1])[:, None, None]
                print((looped - block).abs().max().item(), looped.abs().max().item())
    """
    differences = _differences(code)
    assert len(differences) == 39
    assert all(between < 1e-4 and size > 1 for between, size in differences)


@pytest.mark.parametrize("dropouts", [(0, 0, 0), (0.1, 0, 0.1), (0.1, 0.1, 0.1)])
def test_a_train_step_by_kernels_has_the_gradients_of_one_by_loops(tiny_qwen3: Path, dropouts: tuple[float, ...]):
    code = f"""
        import torch
        from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig
        from lora_rl.trainer import lora_rows
        from lora_rl.trainer.adapter import lora_of
        from lora_rl.trainer.learner import Job, Learner
        from lora_rl.trainer.megatron_compat import init_distributed
        from lora_rl.trainer.model import build_model
        from lora_rl.trainer.slot_bank import SlotBank
        from tests.builders import make_training_samples
        from tests.unit.trainer.forward import random_weights

        torch.set_num_threads(1)
        model = build_model({str(tiny_qwen3)!r}, dtype="float32", device=init_distributed(0, 1))
        bank = SlotBank(model)
        # Ranks that fill no step of a kernel, and that need several; layers that some leave out.
        targets = ("all-linear", ["q_proj", "v_proj"], ["down_proj", "k_proj"])
        loras = [
            lora_of(AdapterConfig(rank=rank, dropout=dropout, target_modules=modules), num_layers=2)
            for rank, dropout, modules in zip((3, 40, 16), {dropouts}, targets)
        ]
        gradients = []
        for by_kernels in (False, True):
            lora_rows.has_kernels = lambda x: by_kernels
            jobs, parameters = [], []
            for slot, lora in enumerate(loras):
                parameters += bank.fill(slot, lora, random_weights(bank, lora, seed=slot))
                job = Job(
                    slot=slot,
                    samples=make_training_samples(seed=slot, longest=24),
                    algorithm=AlgorithmConfig(),
                    sampling=SamplingConfig(),
                    dropout_seed=str(slot) if lora.dropout else None,
                )
                jobs.append(job)
            Learner(model, bank, max_tokens=4096).forward_backward(jobs)
            gradients.append([parameter.value.grad for parameter in parameters])
        for looped, kernel in zip(*gradients, strict=True):
            print(((looped - kernel).abs().max() / looped.abs().max()).item(), 1 + looped.abs().max().item())
    """
    differences = _differences(code)
    assert len(differences) == 2 * (2 * 7 + 2 * 2 + 2 * 2)
    assert all(between < 1e-4 and size > 1 for between, size in differences)


def _differences(code: str) -> list[tuple[float, ...]]:
    """Pairs of numbers that `code` prints. Triton's interpreter must be on before its import: in another process."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(map(float, line.split())) for line in done.stdout.splitlines() if re.fullmatch(r"[-+.\de ]+", line)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("height", [16, 64])
def test_the_kernels_compile_for_a_hopper_card(height: int, dtype: str):
    tile, contiguous = {"ROWS": TILE_ROWS, "x_step": 1}, ("weight_column", "weight_inner")
    expand = {"COLUMNS": row_kernels.EXPAND_COLUMNS, "INNER": height, "ADD": True}
    project = {"COLUMNS": height, "INNER": row_kernels.PROJECT_STEP, "ADD": False}
    for sizes, step in zip((expand, project), contiguous, strict=True):
        _compiles(row_kernels._times_weight, tile | sizes | {step: 1}, dtype, num_stages=row_kernels.STAGES)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("contiguous", ["out_row", "out_step"])
@pytest.mark.parametrize("height", [16, 64])
def test_outer_products_compile_for_a_hopper_card(height: int, contiguous: str, dtype: str):
    sizes = {"ROWS": row_kernels.OUTER_ROWS, "COLUMNS": row_kernels.OUTER_COLUMNS, "LOW": height}
    sizes |= {contiguous: 1, "x_step": 1}
    _compiles(row_kernels._outer, sizes, dtype, num_stages=row_kernels.OUTER_STAGES, out="fp32")


def _compiles(kernel: Any, sizes: Mapping[str, int], dtype: str, num_stages: int, out: str | None = None) -> None:
    types = dict.fromkeys(kernel.arg_names, "i32") | {"tiles_X3": "*i32", "bounds_S2": "*i32"}
    matrices = [name for name in kernel.arg_names if re.fullmatch("out|x|weights|.*_S?[TQ][QK]+", name)]
    assert len(matrices) == 3
    types |= dict.fromkeys(matrices, f"*{dtype}") | dict.fromkeys(sizes, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    if out is not None:
        signature[matrices[0]] = f"*{out}"
    # All strides and addresses at multiples of 16, as they mostly are: loads then run ahead, in shared memory.
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names) if name not in sizes}
    options = {"num_warps": row_kernels.NUM_WARPS, "num_stages": num_stages}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(sizes), attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert "mma" in compiled.asm["ptx"], "its product does not run on the tensor cores"
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= MOST_SHARED
