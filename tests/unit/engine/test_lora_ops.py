"""Our LoRA arithmetic against the one that vLLM ships."""

from collections.abc import Iterator

import pytest
import torch
from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops as shipped
from vllm.lora.punica_wrapper import punica_cpu
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from lora_rl.engine import lora_ops as ours
from tests.tolerances import BF16_LORA, EXACT, FORMULA

SHIPPED = {name: getattr(shipped, name) for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")}
ADAPTERS = 5
TOKENS = {
    "one token": [2],
    "one adapter": [3] * 17,
    "several adapters": [0, 0, 4, 4, 4, 1, 0, 2, 4],
    "every adapter once": [4, 3, 2, 1, 0],
}


def weights(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (values / shape[-1] ** 0.5).to(dtype)


@pytest.fixture
def installed() -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module in (shipped, torch_ops, punica_cpu) for name in SHIPPED]
    ours.install()
    yield
    for module, name, function in before:
        setattr(module, name, function)


@pytest.mark.parametrize("indices", TOKENS.values(), ids=TOKENS.keys())
@pytest.mark.parametrize(("width", "rank"), [(1, 1), (64, 8), (576, 16), (100, 33)])
def test_shrink_equals_the_shipped_one(indices: list[int], width: int, rank: int):
    index_T, x_TI, a_S1RI = (
        torch.tensor(indices),
        weights(len(indices), width, seed=1),
        weights(ADAPTERS, 1, rank, width),
    )
    expected, found = torch.zeros(len(indices), rank + 3), torch.zeros(len(indices), rank + 3)
    SHIPPED["bgmv_shrink"](x_TI, a_S1RI, expected, index_T, 0.5)
    ours.bgmv_shrink(x_TI, a_S1RI, found, index_T, 0.5)
    torch.testing.assert_close(found, expected, atol=FORMULA, rtol=FORMULA)


@pytest.mark.parametrize("indices", TOKENS.values(), ids=TOKENS.keys())
@pytest.mark.parametrize("add_inputs", [True, False])
@pytest.mark.parametrize(("rank", "width", "output_width"), [(8, 64, 64), (16, 576, 576), (16, 100, 96), (1, 30, 32)])
def test_expand_equals_the_shipped_one_also_with_padding(
    indices: list[int], add_inputs: bool, rank: int, width: int, output_width: int
):
    index_T, x_TR, b_S1OR = (
        torch.tensor(indices),
        weights(len(indices), rank, seed=1),
        weights(ADAPTERS, 1, width, rank),
    )
    expected = weights(len(indices), output_width, seed=2)
    found = expected.clone()
    SHIPPED["bgmv_expand"](x_TR, b_S1OR, expected, index_T, add_inputs)
    ours.bgmv_expand(x_TR, b_S1OR, found, index_T, add_inputs)
    torch.testing.assert_close(found, expected, atol=FORMULA, rtol=FORMULA)


@pytest.mark.parametrize("indices", TOKENS.values(), ids=TOKENS.keys())
@pytest.mark.parametrize("add_inputs", [True, False])
@pytest.mark.parametrize("offset", [0, 32, 64])
def test_expand_into_a_slice_equals_the_shipped_one(indices: list[int], add_inputs: bool, offset: int):
    index_T, x_TR, b_S1OR = torch.tensor(indices), weights(len(indices), 8, seed=1), weights(ADAPTERS, 1, 32, 8)
    expected = weights(len(indices), 96, seed=2)
    found = expected.clone()
    SHIPPED["bgmv_expand_slice"](x_TR, b_S1OR, expected, index_T, offset, 32, add_inputs)
    ours.bgmv_expand_slice(x_TR, b_S1OR, found, index_T, offset, 32, add_inputs)
    torch.testing.assert_close(found, expected, atol=FORMULA, rtol=FORMULA)


def test_tokens_without_adapter_keep_their_output():
    index_T = torch.tensor([-1, 1, 1, -1, 0])
    x_TR, b_S1OR, before = weights(5, 8, seed=1), weights(ADAPTERS, 1, 32, 8), weights(5, 32, seed=2)
    found, expected = before.clone(), before.clone()
    ours.bgmv_expand(x_TR, b_S1OR, found, index_T)
    with_adapter = index_T >= 0
    part = before[with_adapter]
    SHIPPED["bgmv_expand"](x_TR[with_adapter], b_S1OR, part, index_T[with_adapter])
    expected[with_adapter] = part
    torch.testing.assert_close(found, expected, atol=FORMULA, rtol=FORMULA)
    torch.testing.assert_close(found[~with_adapter], before[~with_adapter], atol=EXACT, rtol=EXACT)


def test_a_batch_without_any_adapter_is_left_alone():
    output = weights(3, 32, seed=2)
    before = output.clone()
    ours.bgmv_expand(weights(3, 8), weights(ADAPTERS, 1, 32, 8), output, torch.full((3,), -1))
    ours.bgmv_shrink(weights(3, 8), weights(ADAPTERS, 1, 32, 8), output, torch.full((3,), -1))
    assert torch.equal(output, before)


def test_bfloat16_lies_within_rounding_of_the_shipped_one():
    index_T = torch.tensor([0, 1, 1, 3, 3, 3, 0, 2] * 16)
    x_TI, a_S1RI = weights(128, 576, dtype=torch.bfloat16, seed=1), weights(ADAPTERS, 1, 16, 576, dtype=torch.bfloat16)
    b_S1OR = weights(ADAPTERS, 1, 576, 16, dtype=torch.bfloat16, seed=3)
    results = []
    for shrink, expand in (
        (SHIPPED["bgmv_shrink"], SHIPPED["bgmv_expand"]),
        (ours.bgmv_shrink, ours.bgmv_expand),
    ):
        middle, output = torch.zeros(128, 16), weights(128, 576, dtype=torch.bfloat16, seed=4)
        shrink(x_TI, a_S1RI, middle, index_T, 2.0)
        expand(middle, b_S1OR, output, index_T)
        results.append(output.float())
    torch.testing.assert_close(results[1], results[0], atol=BF16_LORA, rtol=EXACT)


def test_repeated_calls_give_the_same_bits():
    index_T, x_TI, a_S1RI = torch.tensor([0, 1, 2] * 40), weights(120, 576, seed=1), weights(ADAPTERS, 1, 16, 576)
    results = []
    for _ in range(3):
        output = torch.zeros(120, 16)
        ours.bgmv_shrink(x_TI, a_S1RI, output, index_T)
        results.append(output)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("is_prefill", [True, False])
def test_vllm_uses_ours_once_installed(is_prefill: bool):
    """A layer with three slices, as qkv: through vLLM's own wrapper, for prefill and decode."""
    index_T, x_TI = torch.tensor([1, 1, 0, 0, 0, 2]), weights(6, 64, seed=1)
    slices = (64, 32, 32)
    a = tuple(weights(ADAPTERS, 1, 8, 64, seed=number) for number in range(3))
    b = tuple(weights(ADAPTERS, 1, size, 8, seed=number) for number, size in enumerate(slices))
    wrapper = PunicaWrapperCPU(64, 8, "cpu")
    wrapper._token_lora_indices[:6] = index_T
    wrapper.indices_len[0] = 6
    wrapper.is_prefill = is_prefill
    if is_prefill:
        wrapper._update_prefill_metadata(wrapper.token_lora_indices)
    found = weights(6, sum(slices), seed=9)
    expected = found.clone()
    wrapper.add_lora_linear(found, x_TI, a, b, 1.5, slices)
    for token, index in enumerate(index_T.tolist()):
        update = [1.5 * b_[index, 0] @ (a_[index, 0] @ x_TI[token]) for a_, b_ in zip(a, b, strict=True)]
        expected[token] += torch.cat(update)
    torch.testing.assert_close(found, expected, atol=FORMULA, rtol=FORMULA)
    assert vars(punica_cpu)["bgmv_shrink"] is ours.bgmv_shrink
    assert shipped.bgmv_expand_slice is ours.bgmv_expand_slice
