"""Experts with LoRA on the CPU against one token and one expert at a time."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lora_rl.engine.expert_lora import CpuLoraExperts
from tests.tolerances import FORMULA

TOKENS, TOP, EXPERTS, WIDTH, INNER, RANK, ADAPTERS = 7, 2, 4, 8, 6, 3, 2


def _draw(*shape: int) -> Tensor:
    return 0.5 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _context(adapter_T: Tensor) -> Any:
    return SimpleNamespace(
        punica_wrapper=SimpleNamespace(token_lora_indices=adapter_T),
        w13_lora_a_stacked=(_draw(ADAPTERS, EXPERTS, RANK, WIDTH), _draw(ADAPTERS, EXPERTS, RANK, WIDTH) + 1),
        w13_lora_b_stacked=(_draw(ADAPTERS, EXPERTS, INNER, RANK), _draw(ADAPTERS, EXPERTS, INNER, RANK) - 1),
        w2_lora_a_stacked=(_draw(ADAPTERS, EXPERTS, RANK, INNER),),
        w2_lora_b_stacked=(_draw(ADAPTERS, EXPERTS, WIDTH, RANK),),
    )


def _expected(x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor, adapter_T: Tensor, lora: Any) -> Tensor:
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for place, expert in enumerate(ids[token]):
            w_gate, w_up, w_down, adapter = *w1[expert].chunk(2), w2[expert], int(adapter_T[token])
            if adapter >= 0:
                a, b = lora.w13_lora_a_stacked, lora.w13_lora_b_stacked
                w_gate = w_gate + b[0][adapter, expert] @ a[0][adapter, expert]
                w_up = w_up + b[1][adapter, expert] @ a[1][adapter, expert]
                w_down = (
                    w_down + lora.w2_lora_b_stacked[0][adapter, expert] @ lora.w2_lora_a_stacked[0][adapter, expert]
                )
            inner = torch.nn.functional.silu(w_gate @ x[token]) * (w_up @ x[token])
            out[token] += weights[token, place] * (w_down @ inner)
    return out


@pytest.mark.parametrize("adapters", [(-1, 0, 1, 1, -1, 0, 1), (0,) * TOKENS, (-1,) * TOKENS, None])
def test_each_token_has_its_experts_under_its_own_adapter(adapters):
    x, w1, w2 = _draw(TOKENS, WIDTH), _draw(EXPERTS, 2 * INNER, WIDTH), _draw(EXPERTS, WIDTH, INNER)
    weights, ids = _draw(TOKENS, EXPERTS).softmax(-1).topk(TOP)
    adapter_T = torch.tensor(adapters or (-1,) * TOKENS)
    experts = object.__new__(CpuLoraExperts)
    lora = _context(adapter_T)
    experts._lora_context = lora if adapters else None
    output = torch.full_like(x, torch.nan)
    experts.apply(output, x, w1, w2, weights, ids)
    assert (output - _expected(x, w1, w2, weights, ids, adapter_T, lora)).abs().max() < 10 * FORMULA
