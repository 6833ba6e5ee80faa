"""The slots of a model: putting adapters in, taking them out, and whose rows the next forward pass has.

Whole tensors are A [R, K] and B [N, R] under the names that `Lora` gives them, in float32 on the CPU, whatever the
topology.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.lora_rows import Span, seeded_generator
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.slot_lora import Fused, LoraPair, SlotLoraLinear

LAYERS = {
    "self_attention.linear_qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "self_attention.linear_proj": ("self_attn", ("o_proj",)),
    "mlp.linear_fc1": ("mlp", ("gate_proj", "up_proj")),
    "mlp.linear_fc2": ("mlp", ("down_proj",)),
}
"""Megatron's linear layers, and the Hugging Face block and projections that each holds."""

ROW_PARALLEL = ("self_attention.linear_proj", "mlp.linear_fc2")


@dataclass(frozen=True, kw_only=True)
class SlotParameter:
    """One A or B of a slot, this rank's part."""

    name: str
    value: nn.Parameter
    split_dim: int | None
    """Dimension split over the tensor-parallel group; null where every rank holds the whole."""


class SlotBank:
    """All LoRA weights of one model, by slot."""

    def __init__(self, model: FrozenModel):
        """Puts a `SlotLoraLinear` in the place of each linear layer of `model`."""
        self._model = model
        self._spans: list[Span] = []
        self._layers: dict[str, SlotLoraLinear] = {}
        for index, layer in enumerate(model.gpt.decoder.layers):
            for name, (block, projections) in LAYERS.items():
                parent, _, attribute = name.partition(".")
                owner = getattr(layer, parent)
                modules = tuple(f"model.layers.{index}.{block}.{projection}" for projection in projections)
                linear = SlotLoraLinear(getattr(owner, attribute), self._fused(name, modules), self._spans)
                setattr(owner, attribute, linear)
                self._layers |= dict.fromkeys(modules, linear)

    def shape(self, module: str) -> tuple[int, int]:
        """Input and output width (K, N) of a projection, over all ranks."""
        config: Any = self._model.gpt.config
        attention = config.kv_channels * config.num_attention_heads
        key_value = config.kv_channels * config.num_query_groups
        hidden, ffn = config.hidden_size, config.ffn_hidden_size
        match module.rpartition(".")[2]:
            case "q_proj":
                return hidden, attention
            case "k_proj" | "v_proj":
                return hidden, key_value
            case "o_proj":
                return attention, hidden
            case "gate_proj" | "up_proj":
                return hidden, ffn
            case _:
                return ffn, hidden

    def shapes(self, lora: Lora) -> dict[str, tuple[int, int]]:
        """Shape of each whole tensor of an adapter, in the model's order."""
        shapes = {}
        for module in lora.modules:
            width_in, width_out = self.shape(module)
            shapes[lora.name_of_a(module)] = (lora.rank, width_in)
            shapes[lora.name_of_b(module)] = (width_out, lora.rank)
        return shapes

    def fresh_weights(self, lora: Lora, seed: int) -> dict[str, Tensor]:
        """PEFT's start: A uniform in ±1/sqrt(K) (kaiming, a = sqrt(5)), B zero. Each A follows from seed and name."""
        weights = {}
        for name, shape in self.shapes(lora).items():
            weight = torch.zeros(shape)
            if name.endswith("lora_A.weight"):
                bound = shape[1] ** -0.5
                weight.uniform_(-bound, bound, generator=seeded_generator(f"{seed}/{name}", torch.device("cpu")))
            weights[name] = weight
        return weights

    def fill(self, slot: int, lora: Lora, weights: Mapping[str, Tensor]) -> list[SlotParameter]:
        """Put an adapter in a slot, in the place of whatever was there; returns its parameters, in order.

        `weights` are whole.
        """
        self.clear(slot)
        parameters = []
        for module in lora.modules:
            layer = self._layers[module]
            a, b = (
                self._parameter(f"{module}.lora_{letter}.weight", weights, split_dim)
                for letter, split_dim in (
                    ("A", 1 if layer.fused.row_parallel else None),
                    ("B", None if layer.fused.row_parallel else 0),
                )
            )
            pair = LoraPair(a=a.value, b=b.value, rank=lora.rank, scaling=lora.scaling, dropout=lora.dropout)
            layer.pairs.setdefault(slot, {})[module] = pair
            parameters += [a, b]
        return parameters

    def clear(self, slot: int) -> None:
        """Leave nothing of the slot's adapter."""
        for layer in self._layers.values():
            layer.pairs.pop(slot, None)

    @contextmanager
    def routed(self, spans: tuple[Span, ...]) -> Iterator[None]:
        """Within, rows belong to slots by `spans`, which cover all rows; outside, every adapter is off.

        The backward pass belongs inside: recomputed layers look again.
        """
        self._spans[:] = spans
        try:
            yield
        finally:
            self._spans.clear()

    def share(self, whole: Tensor, split_dim: int | None) -> Tensor:
        """This rank's part of a whole tensor."""
        if split_dim is None:
            return whole
        return whole.chunk(self._model.tp, split_dim)[self._model.tp_rank]

    def whole(self, share: Tensor, split_dim: int | None) -> Tensor:
        """The whole tensor on the CPU, from every rank's part. All ranks must call it, in the same order."""
        if split_dim is None or self._model.tp == 1:
            return share.detach().cpu().clone()
        shares = [torch.empty_like(share) for _ in range(self._model.tp)]
        dist.all_gather(shares, share.detach().contiguous(), group=self._model.tp_group)
        return torch.cat(shares, split_dim).cpu()

    def _parameter(self, name: str, weights: Mapping[str, Tensor], split_dim: int | None) -> SlotParameter:
        share = self.share(weights[name], split_dim).to(self._model.device, torch.float32, copy=True)
        return SlotParameter(name=name, value=nn.Parameter(share.contiguous()), split_dim=split_dim)

    def _fused(self, name: str, modules: tuple[str, ...]) -> Fused:
        row_parallel = name in ROW_PARALLEL
        share = 1 if row_parallel else self._model.tp
        config: Any = self._model.gpt.config
        num_groups = config.num_query_groups // share if name.endswith("linear_qkv") else 1
        return Fused(
            modules_P=modules,
            widths_P=tuple(self.shape(module)[1] // share for module in modules),
            num_groups=num_groups,
            row_parallel=row_parallel,
            group=self._model.tp_group,
        )
