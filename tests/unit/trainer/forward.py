"""Short ways to a forward pass with an adapter."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lora_rl.config import AdapterConfig
from lora_rl.trainer.adapter import Lora, lora_of
from lora_rl.trainer.attention import Ask, make_layout
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.slot_bank import SlotBank


def all_linear(bank: SlotBank, *, rank: int = 4, alpha: float = 8.0, dropout: float = 0.0) -> Lora:
    """An adapter of every projection of the two layers."""
    adapter = AdapterConfig(rank=rank, alpha=alpha, dropout=dropout)
    return lora_of(adapter, num_layers=2, sparse=bank._model.sparse)


def random_weights(bank: SlotBank, lora: Lora, seed: int = 0) -> dict[str, Tensor]:
    """Whole weights with B not zero."""
    draw = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in bank.shapes(lora).items()}


@torch.no_grad()
def sequence_logits(model: FrozenModel, bank: SlotBank, tokens: Sequence[int], slot: int | None = None) -> Tensor:
    """Logits [len, V] of one sequence under a slot's adapter, or under none."""
    rows = range(len(tokens))
    layout = make_layout([Ask(queries=rows, keys=rows)], model.device, model.dtype)
    spans = () if slot is None else (Span(slot=slot, start=0, stop=len(tokens)),)
    with bank.routed(spans):
        hidden_TD = model.hidden_TD(torch.tensor(list(tokens)), torch.tensor(list(rows)), layout)
    return hidden_TD @ model.head_VD.T
