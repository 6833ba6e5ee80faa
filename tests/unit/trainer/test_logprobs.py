import pytest
import torch

from lora_rl.trainer import logprobs
from lora_rl.trainer.logprobs import token_logprobs
from tests.tolerances import FORMULA
from tests.unit.trainer.one_rank import OneRank

ROWS, WIDTH, VOCAB = 11, 8, 37


@pytest.fixture(params=[1 << 22, 2 * VOCAB])
def inputs(request, monkeypatch):
    """Hidden states, head, targets, temperatures; whole, and in chunks of two rows."""
    monkeypatch.setitem(logprobs.CHUNK_LOGITS, "cpu", request.param)
    draw = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(ROWS, WIDTH, generator=draw, requires_grad=True)
    head_VD = torch.randn(VOCAB, WIDTH, generator=draw)
    return hidden_ND, head_VD, torch.randint(VOCAB, (ROWS,), generator=draw), 0.5 + torch.rand(ROWS, generator=draw)


def _plain(hidden_ND, head_VD, targets_N, temperature_N):
    logp_NV = (hidden_ND @ head_VD.T / temperature_N[:, None]).log_softmax(-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


def test_logp_and_entropy_are_those_of_the_softmax_at_each_temperature(inputs):
    for ours, plain in zip(token_logprobs(*inputs, OneRank()), _plain(*inputs), strict=True):
        assert (ours - plain).abs().max() < FORMULA * 10


@pytest.mark.parametrize(("of_logp", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.7, -0.4)])
def test_gradient_is_that_of_the_softmax(inputs, of_logp, of_entropy):
    hidden_ND, weights = inputs[0], torch.linspace(-1, 2, ROWS)
    gradients = []
    ours = token_logprobs(*inputs, OneRank(), entropy_gradient=of_entropy != 0)
    for logp_N, entropy_N in (ours, _plain(*inputs)):
        loss = of_logp * (weights * logp_N).sum() + of_entropy * (weights * entropy_N).sum()
        gradients.append(torch.autograd.grad(loss, hidden_ND)[0])
    assert (gradients[0] - gradients[1]).abs().max() < FORMULA * 10


def test_an_entropy_without_gradient_changes_nothing(inputs):
    logp_N, _ = token_logprobs(*inputs, OneRank())
    (ours,) = torch.autograd.grad(logp_N.sum(), inputs[0])
    (plain,) = torch.autograd.grad(_plain(*inputs)[0].sum(), inputs[0])
    assert (ours - plain).abs().max() < FORMULA * 10


def test_a_sure_target_keeps_its_small_gradient_in_bfloat16():
    hidden_ND = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    head_VD = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.bfloat16)
    logp_N, _ = token_logprobs(hidden_ND, head_VD, torch.tensor([0]), torch.ones(1), OneRank())
    logp_N.sum().backward()
    missing = 1 - logp_N.exp().item()
    assert hidden_ND.grad is not None
    assert abs(hidden_ND.grad[0, 0].item() / missing - 1) < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_float32_for_a_model_in_half_precision(inputs, dtype):
    hidden_ND, head_VD, targets_N, temperature_N = inputs
    logp_N, entropy_N = token_logprobs(hidden_ND.to(dtype), head_VD.to(dtype), targets_N, temperature_N, OneRank())
    assert logp_N.dtype == entropy_N.dtype == torch.float32
