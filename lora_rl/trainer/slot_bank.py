"""The slots of a model: putting adapters in, taking them out, and whose rows the next forward pass has.

Whole tensors are A [R, K] and B [N, R], for experts [E, R, K] and [E, N, R], under the names that `Lora` gives them, in
float32 on the CPU, whatever the topology.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.foreach import foreach_copy_, foreach_mul, foreach_mul_
from lora_rl.trainer.gradients import SlotParameter, reduce_gradients
from lora_rl.trainer.lora_rows import Routing, Span, seeded_generator
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.slot_experts import ExpertLinear, ExpertPair
from lora_rl.trainer.slot_lora import Fused, Place, SlotLoraLinear, SlotWeights
from lora_rl.trainer.targets import EXPERTS, LAYERS, MEGATRON_BLOCKS, of_experts
from lora_rl.trainer.transfer import on_device

ROW_PARALLEL = ("o_proj", "down_proj")
"""Projections split on the input, not on the output."""


class SlotBank:
    """All LoRA weights of one model, by slot."""

    def __init__(self, model: FrozenModel):
        """Puts a `SlotLoraLinear` in the place of each linear layer of `model`."""
        self._model = model
        self._routing = Routing.of((), model.device)
        self._layers: dict[str, SlotLoraLinear] = {}
        self._slots: dict[int, tuple[Lora, list[SlotParameter]]] = {}
        self._experts: dict[str, ExpertLinear] = {}
        layers: Any = model.gpt.decoder.layers
        for layer in layers:
            # Megatron counts from 1, over all stages.
            index = layer.layer_number - 1
            if model.sparse:
                layer.mlp.spans = lambda: self._routing.spans
                self._experts |= {
                    f"model.layers.{index}.{EXPERTS}.{projection}": linear
                    for linear in (layer.mlp.experts.fc1, layer.mlp.experts.fc2)
                    for projection in linear.projections
                }
            for name, (block, projections) in LAYERS.items():
                if model.sparse and block == "mlp":
                    continue
                owner = getattr(layer, MEGATRON_BLOCKS[block])
                modules = tuple(f"model.layers.{index}.{block}.{projection}" for projection in projections)
                linear = SlotLoraLinear(getattr(owner, name), self._fused(modules), lambda: self._routing)
                setattr(owner, name, linear)
                self._layers |= dict.fromkeys(modules, linear)

    def shape(self, module: str) -> tuple[int, int]:
        """Input and output width (K, N) of a projection, over all ranks."""
        config: Any = self._model.gpt.config
        attention = config.kv_channels * config.num_attention_heads
        key_value = config.kv_channels * config.num_query_groups
        hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size if of_experts(module) else config.ffn_hidden_size
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

    def shapes(self, lora: Lora) -> dict[str, tuple[int, ...]]:
        """Shape of each whole tensor of an adapter, in the model's order."""
        config: Any = self._model.gpt.config
        shapes = {}
        for module in lora.modules:
            width_in, width_out = self.shape(module)
            stacked = (config.num_moe_experts,) if of_experts(module) else ()
            shapes[lora.name_of_a(module)] = (*stacked, lora.rank, width_in)
            shapes[lora.name_of_b(module)] = (*stacked, width_out, lora.rank)
        return shapes

    def fresh_weights(self, lora: Lora, seed: int) -> dict[str, Tensor]:
        """PEFT's start: A uniform in ±1/sqrt(K) (kaiming, a = sqrt(5)), B zero. Each A follows from seed and name."""
        weights = {}
        for name, shape in self.shapes(lora).items():
            weight = torch.zeros(shape)
            if name.endswith("lora_A.weight"):
                bound = shape[-1] ** -0.5
                weight.uniform_(-bound, bound, generator=seeded_generator(f"{seed}/{name}", torch.device("cpu")))
            weights[name] = weight
        return weights

    def fill(self, slot: int, lora: Lora, weights: Mapping[str, Tensor]) -> list[SlotParameter]:
        """Put an adapter in a slot, in the place of whatever was there; returns this rank's parameters, in order.

        `weights` are whole; those of other stages' layers are left.
        """
        self.clear(slot)
        parameters = {}
        modules = [module for module in lora.modules if module in self._layers or module in self._experts]
        for module in modules:
            row_parallel = module.endswith(ROW_PARALLEL)
            for name, split_dim in (
                (lora.name_of_a(module), -1 if row_parallel else None),
                (lora.name_of_b(module), None if row_parallel else -2),
            ):
                if name not in parameters:
                    parameters[name] = self._parameter(name, weights, split_dim)
        masters = {name: parameter.value for name, parameter in parameters.items()}
        for layer in dict.fromkeys(self._layers[module] for module in modules if not of_experts(module)):
            layer.slots[slot] = SlotWeights.of(layer.fused, lora, masters, self._model.dtype)
        for module in filter(of_experts, modules):
            pair = ExpertPair(masters[lora.name_of_a(module)], masters[lora.name_of_b(module)], lora.scaling)
            self._experts[module].pairs.setdefault(slot, {})[module.rpartition(".")[2]] = pair
        self._slots[slot] = lora, list(parameters.values())
        self.refresh(slot)
        return self._slots[slot][1]

    @torch.no_grad()
    def refresh(self, slot: int) -> None:
        """Bring the slot's parameters, after a change, to where they are multiplied."""
        lora, _ = self._slots[slot]
        layers = self._layers_of(slot)
        if not layers:
            # The adapter is all on experts, or on other stages.
            return
        # Apart from the A's, as the B's are transposed: together they would all be copied one by one.
        foreach_copy_(
            [a_RK for weights in layers for a_RK in weights.a_parts],
            [block.master for weights in layers for block in weights.a_blocks],
        )
        foreach_copy_(
            [b_NR for weights in layers for b_NR in weights.b_parts],
            foreach_mul([block.master for weights in layers for block in weights.b_blocks], lora.scaling),
        )

    @torch.no_grad()
    def take_gradients(self, loss_scales: Mapping[int, float]) -> None:
        """Add what backward passes have left of the slots, on all ranks, to their parameters' gradients.

        `loss_scales` has each slot's factor on its loss, which is undone. All ranks must call it, with the slots in the
        same order.
        """
        slots = list(loss_scales)
        gradients: dict[nn.Parameter, Tensor] = {}
        scalings: dict[tuple[int, ...], Tensor] = {}
        for layer in dict.fromkeys(self._layers.values()):
            for holders, (a_grad_SQK, b_grads) in layer.gradients.take().items():
                if holders not in scalings:
                    scalings[holders] = on_device([self._slots[slot][0].scaling for slot in holders], a_grad_SQK.device)
                for b_grad_SNR in b_grads.values():
                    b_grad_SNR.mul_(scalings[holders][:, None, None])
                for master, gradient in _gradients(layer, holders, a_grad_SQK, b_grads):
                    gradients[master] = gradients[master] + gradient if master in gradients else gradient
        for pair in (pair for slot in slots for pair in self._pairs_of(slot)):
            for master, gradient in pair.take_gradients().items():
                gradients[master] = gradients[master] + gradient if master in gradients else gradient
        for slot, scale in loss_scales.items():
            if scale != 1:
                own = [gradients[parameter.value] for parameter in self._slots[slot][1] if parameter.value in gradients]
                if own:
                    foreach_mul_(own, 1 / scale)
        parameters = [parameter for slot in slots for parameter in self._slots[slot][1]]
        reduce_gradients(parameters, gradients, self._model.groups)
        for master, gradient in gradients.items():
            master.grad = gradient if master.grad is None else master.grad + gradient

    def clear(self, slot: int) -> None:
        """Leave nothing of the slot's adapter."""
        self._slots.pop(slot, None)
        for layer in self._layers.values():
            layer.slots.pop(slot, None)
            layer.gradients.take()
        for experts in self._experts.values():
            experts.pairs.pop(slot, None)

    def tensors(self) -> Iterator[Tensor]:
        """All memory of the slots between calls: parameters, their gradients, and the copies that are multiplied."""
        for slot, (_, parameters) in self._slots.items():
            for parameter in parameters:
                yield parameter.value
                if parameter.value.grad is not None:
                    yield parameter.value.grad
            for weights in self._layers_of(slot):
                yield from (weights.a_QK, weights.b_QN)

    @contextmanager
    def routed(self, spans: tuple[Span, ...]) -> Iterator[None]:
        """Within, rows belong to slots by `spans`, which cover all rows; outside, every adapter is off.

        The backward pass belongs inside: recomputed layers look again.
        """
        nobody, self._routing = self._routing, Routing.of(spans, self._model.device)
        try:
            yield
        finally:
            self._routing = nobody

    def share(self, whole: Tensor, split_dim: int | None, *, of_experts: bool = False) -> Tensor:
        """This rank's part of a whole tensor."""
        groups = self._model.groups
        if of_experts:
            whole = whole.chunk(groups.ep.size())[groups.ep.rank()]
        return whole if split_dim is None else whole.chunk(groups.tp.size(), split_dim)[groups.tp.rank()]

    def gathered(self, share: Tensor, split_dim: int | None, *, of_experts: bool = False) -> Tensor:
        """The whole tensor where the model is; it may be `share` itself. All ranks must call it, in the same order."""
        whole = share.detach()
        if split_dim is not None:
            whole = _joined(whole, split_dim, self._model.groups.tp)
        return _joined(whole, 0, self._model.groups.ep) if of_experts else whole

    def _layers_of(self, slot: int) -> list[SlotWeights]:
        return [layer.slots[slot] for layer in dict.fromkeys(self._layers.values()) if slot in layer.slots]

    def _pairs_of(self, slot: int) -> list[ExpertPair]:
        layers = dict.fromkeys(self._experts.values())
        return [pair for layer in layers for pair in layer.pairs.get(slot, {}).values()]

    def _parameter(self, name: str, weights: Mapping[str, Tensor], split_dim: int | None) -> SlotParameter:
        stacked = of_experts(name)
        share = self.share(weights[name], split_dim, of_experts=stacked)
        value = nn.Parameter(share.to(self._model.device, torch.float32, copy=True).contiguous())
        return SlotParameter(name=name, value=value, split_dim=split_dim, of_experts=stacked)

    def _fused(self, modules: tuple[str, ...]) -> Fused:
        row_parallel = modules[0].endswith(ROW_PARALLEL)
        share = 1 if row_parallel else self._model.tp
        return Fused(
            modules_P=modules,
            widths_P=tuple(self.shape(module)[1] // share for module in modules),
            row_parallel=row_parallel,
            group=self._model.tp_group,
        )


def _gradients(
    layer: SlotLoraLinear, slots: tuple[int, ...], a_grad_SQK: Tensor, b_grads: Mapping[Place, Tensor]
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each master of the slots with its gradient."""
    # Taken apart once for all slots that have a block in the same place: slots are many.
    of_place = {place: b_grad_SNR.unbind() for place, b_grad_SNR in b_grads.items()}
    for number, slot in enumerate(slots):
        if slot not in layer.slots:
            continue
        for block in layer.slots[slot].a_blocks:
            if block.place not in of_place:
                of_place[block.place] = a_grad_SQK[:, block.rows].unbind()
            yield block.master, of_place[block.place][number]
        for block in layer.slots[slot].b_blocks:
            yield block.master, of_place[block.place][number]


def _joined(share: Tensor, split_dim: int, group: Any) -> Tensor:
    """All ranks' parts as one."""
    if group.size() == 1:
        return share
    shares = [torch.empty_like(share) for _ in range(group.size())]
    dist.all_gather(shares, share.contiguous(), group=group)
    return torch.cat(shares, split_dim)
