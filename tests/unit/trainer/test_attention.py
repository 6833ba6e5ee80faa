import pytest
import torch
import torch.nn.functional as F

from lora_rl.trainer import attention
from lora_rl.trainer.attention import Ask, BucketedLayout
from tests.tolerances import FORMULA

CPU = torch.device("cpu")
HEADS, GROUPS, SIZE = 4, 2, 8
PROMPTS = ((5, (1, 7, 40)), (33, (2, 16)))
"""Length of each prompt, and of its responses."""


def _asks() -> tuple[list[Ask], list[list[int]]]:
    """Asks, and for each response the rows of its whole sequence."""
    asks, sequences, row = [], [], 0
    for prompt_length, response_lengths in PROMPTS:
        prompt = list(range(row, row + prompt_length))
        asks.append(Ask(queries=prompt, keys=prompt))
        row += prompt_length
        for length in response_lengths:
            response = list(range(row, row + length))
            asks.append(Ask(queries=response, keys=[*prompt, *response]))
            sequences.append([*prompt, *response])
            row += length
    return asks, sequences


@pytest.fixture
def packed():
    """Queries, keys and values of all rows."""
    num_rows = 1 + max(row for rows in _asks()[1] for row in rows)
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(num_rows, heads, SIZE, generator=draw).requires_grad_() for heads in (HEADS, GROUPS, GROUPS)]


def _attend_alone(query, key, value, rows) -> torch.Tensor:
    """One whole sequence, without packing: [len, H, E]."""
    q, k, v = (part[rows].transpose(0, 1)[None] for part in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)[0].transpose(0, 1)


@pytest.mark.parametrize("plain_max_keys", [0, 256], ids=["fused", "plain"])
def test_packed_rows_attend_as_their_sequences_do_alone(packed, plain_max_keys, monkeypatch):
    monkeypatch.setattr(attention, "PLAIN_MAX_KEYS", plain_max_keys)
    asks, sequences = _asks()
    output = BucketedLayout.of(asks, CPU).attend(*packed, 0.3)
    assert output.shape == packed[0].shape
    for rows in sequences:
        assert (output[rows] - _attend_alone(*packed, rows)).abs().max() < FORMULA * 10


@pytest.mark.parametrize("plain_max_keys", [0, 256], ids=["fused", "plain"])
def test_a_shared_prompt_gathers_the_gradients_of_all_its_responses(packed, plain_max_keys, monkeypatch):
    monkeypatch.setattr(attention, "PLAIN_MAX_KEYS", plain_max_keys)
    asks, sequences = _asks()
    weights = torch.linspace(-1, 1, SIZE)
    ours = torch.autograd.grad((BucketedLayout.of(asks, CPU).attend(*packed, 0.3) * weights).sum(), packed)
    prompts = [list(ask.queries) for ask in asks if ask.queries == ask.keys]
    alone = sum((_attend_alone(*packed, rows) * weights).sum() for rows in sequences)
    # Each prompt's own outputs count once, not once a response.
    for prompt, (_, responses) in zip(prompts, PROMPTS, strict=True):
        alone = alone - (len(responses) - 1) * (_attend_alone(*packed, prompt) * weights).sum()
    plain = torch.autograd.grad(alone, packed)
    assert all((a - b).abs().max() < FORMULA * 20 for a, b in zip(ours, plain, strict=True))


def test_a_row_s_output_does_not_hang_on_its_neighbours(packed):
    asks, _ = _asks()
    together = BucketedLayout.of(asks, CPU).attend(*packed, 0.3)
    prompt_length, responses = PROMPTS[0]
    rows = range(prompt_length + sum(responses))
    alone = BucketedLayout.of(asks[: 1 + len(responses)], CPU).attend(*(part[: len(rows)] for part in packed), 0.3)
    assert torch.equal(together[: len(rows)], alone)
