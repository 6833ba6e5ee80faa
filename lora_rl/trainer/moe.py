"""Sparse layers of Qwen3-MoE for Megatron: router, experts, and what the provider's config must say.

T packed rows, D width, k experts a row takes of E, M = T·k rows at the experts.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig

from lora_rl.trainer.expert_dispatch import on_all_experts, on_own_experts
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.megatron_compat import GPTModel, parallel_state
from lora_rl.trainer.slot_experts import NO_SLOT, SlotExperts


class Router(nn.Module):
    """Chooses each row's experts, as transformers does: product in the model's type, softmax in float32."""

    weight: nn.Parameter
    """[E, D]; set once it is read, as the experts'."""

    def __init__(self, config: Any):
        super().__init__()
        self.top_k = config.moe_router_topk
        # Megatron's words for it: a softmax over the chosen alone is the softmax over all, normalised.
        self.normalised = not config.moe_router_pre_softmax
        self.register_parameter("weight", None)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers [T, k] of the chosen experts."""
        probabilities_TE = F.linear(x_TD, self.weight).softmax(-1, dtype=torch.float32)
        weights_Tk, experts_Tk = probabilities_TE.topk(self.top_k, dim=-1)
        if self.normalised:
            weights_Tk = weights_Tk / weights_Tk.sum(-1, keepdim=True)
        return weights_Tk.to(x_TD.dtype), experts_Tk


class SparseMlp(nn.Module):
    """Takes the place of a layer's MLP: a row's output is the weighted sum of its experts' outputs.

    Megatron's own layer wants Transformer Engine or CUDA at several places, and its dispatcher loses which row belongs
    to which adapter. Without a loss on the balance of experts: the router is frozen.
    """

    def __init__(self, config: Any, **unused: Any):
        super().__init__()
        self.router = Router(config)
        self.experts = SlotExperts(parallel_state.get_tensor_model_parallel_group())
        self._ep_group: Any = parallel_state.get_expert_model_parallel_group()
        self.spans: Callable[[], tuple[Span, ...]] = tuple
        """Gives whose rows the next forward pass has."""

    def forward(self, hidden_T1D: Tensor, padding_mask: None = None) -> tuple[Tensor, None]:
        x_TD = hidden_T1D.flatten(0, 1)
        weights_Tk, experts_Tk = self.router(x_TD)
        slots, place_T = row_slots(self.spans(), len(x_TD), x_TD.device)
        # Copied before it is sorted: a row's k gradients are then summed in one order, also on CUDA.
        copies_MD = x_TD[:, None].expand(-1, self.router.top_k, -1).flatten(0, 1)
        expert_M, place_M = experts_Tk.flatten(), place_T.repeat_interleave(self.router.top_k)
        num_experts = self.router.weight.shape[0]
        if self._ep_group.size() == 1:
            outputs_MD = on_own_experts(copies_MD, expert_M, place_M, slots, num_experts, self.experts)
        else:
            slot_M = torch.tensor(slots, device=x_TD.device)[place_M]
            outputs_MD = on_all_experts(copies_MD, expert_M, slot_M, num_experts, self.experts, self._ep_group)
        return (outputs_MD.view(*weights_Tk.shape, -1) * weights_Tk[..., None]).sum(1).view_as(hidden_T1D), None


@lru_cache(maxsize=2)
def row_slots(spans: tuple[Span, ...], num_rows: int, device: torch.device) -> tuple[tuple[int, ...], Tensor]:
    """The slots among the rows, and for each row [T] the place of its slot among them. The same for all layers."""
    if not spans:
        return (NO_SLOT,), torch.zeros(num_rows, dtype=torch.long, device=device)
    sizes = torch.tensor([span.stop - span.start for span in spans])
    return tuple(span.slot for span in spans), torch.arange(len(spans)).repeat_interleave(sizes).to(device)


SETTINGS = {
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_permute_fusion": False,
    "moe_grouped_gemm": False,
}
"""What we ask of the provider for a sparse model."""


def expected_fields(hf_config: PreTrainedConfig) -> dict[str, Any]:
    """Provider fields that must follow from the Hugging Face config of a sparse model."""
    return {
        "num_moe_experts": hf_config.num_experts,
        "moe_router_topk": hf_config.num_experts_per_tok,
        "moe_ffn_hidden_size": hf_config.moe_intermediate_size,
        "moe_router_pre_softmax": not hf_config.norm_topk_prob,
        "moe_layer_freq": 1,
        "moe_shared_expert_intermediate_size": None,
    }


def load_sparse(path: Path, gpt: GPTModel, dtype: torch.dtype) -> None:
    """Read routers and experts of all layers, this rank's part. Raises KeyError for a tensor that `path` lacks."""
    tp_group: Any = parallel_state.get_tensor_model_parallel_group()
    ep_group: Any = parallel_state.get_expert_model_parallel_group()
    layers: Any = gpt.decoder.layers
    config: Any = gpt.config
    num_own = config.num_moe_experts // ep_group.size()
    own_experts = range(ep_group.rank() * num_own, (ep_group.rank() + 1) * num_own)
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, "pt")) for file in sorted(path.glob("*.safetensors"))]
        by_name = {name: file for file in files for name in file.keys()}  # noqa: SIM118

        def read(name: str) -> Tensor:
            return by_name[f"{name}.weight"].get_tensor(f"{name}.weight").to(dtype)

        for layer in layers:
            mlp = f"model.layers.{layer.layer_number - 1}.mlp"
            layer.mlp.router.weight = nn.Parameter(read(f"{mlp}.gate"), requires_grad=False)
            for linear in (layer.mlp.experts.fc1, layer.mlp.experts.fc2):
                split_dim = 1 if linear.row_parallel else 0
                weights = [
                    [
                        read(f"{mlp}.experts.{expert}.{projection}").chunk(tp_group.size(), split_dim)[tp_group.rank()]
                        for projection in linear.projections
                    ]
                    for expert in own_experts
                ]
                stacked = torch.stack([torch.cat(parts) for parts in weights])
                linear.weight = nn.Parameter(stacked, requires_grad=False)
