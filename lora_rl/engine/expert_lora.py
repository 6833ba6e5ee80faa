"""Experts with LoRA for the CPU, where vLLM has kernels for experts but none that knows of adapters.

With LoRA switched on vLLM 0.32 takes its Triton kernel for experts wherever it runs, and on a CPU dies of it at the
first request. Axes: T tokens, k experts a token takes of E, D width, F an expert's, R rank, S loaded adapters.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.experts.lora_experts_mixin import LoRAExpertsMixin
from vllm.model_executor.layers.fused_moe.oracle import unquantized as oracle
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend


class CpuLoraExperts(LoRAExpertsMixin, CPUUnquantizedExperts):
    """Plain products, an expert at a time; an adapter's on the rows of its tokens."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Leaves weights as they are: the kernel that wants them packed is not used."""

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.SILU

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *unused: Any,
        **unused_by_name: Any,
    ) -> None:
        """output [T, D] = the weighted sum of each token's experts. w1 [E, 2F, D], w2 [E, D, F], topk [T, k]."""
        lora = cast(Any, self._lora_context)
        # Without LoRA on experts vLLM gives no context: adapters then act on attention alone.
        adapter_T = lora.punica_wrapper.token_lora_indices if self._lora_context else None
        output.zero_()
        for expert in topk_ids.unique().tolist():
            tokens_M, place_M = (topk_ids == expert).nonzero(as_tuple=True)
            rows_MD = hidden_states[tokens_M]
            spans = [] if adapter_T is None else list(_adapters(adapter_T[tokens_M]))
            gate_up = rows_MD @ w1[expert].T
            for part, gate_or_up in enumerate(gate_up.chunk(2, 1)):
                for rows, adapter in spans:
                    a, b = (
                        lora.w13_lora_a_stacked[part][adapter, expert],
                        lora.w13_lora_b_stacked[part][adapter, expert],
                    )
                    gate_or_up[rows] += rows_MD[rows] @ a.T @ b.T
            gate, up = gate_up.chunk(2, 1)
            inner_MF = F.silu(gate) * up
            out_MD = inner_MF @ w2[expert].T
            for rows, adapter in spans:
                a, b = lora.w2_lora_a_stacked[0][adapter, expert], lora.w2_lora_b_stacked[0][adapter, expert]
                out_MD[rows] += inner_MF[rows] @ a.T @ b.T
            output.index_add_(0, tokens_M, (out_MD * topk_weights[tokens_M, place_M, None]).to(output.dtype))


def install() -> None:
    """Makes vLLM take these experts in this process, for unquantized models with LoRA. A second call does nothing."""
    method: Any = unquantized_fused_moe_method
    select = oracle.select_unquantized_moe_backend

    def selecting(moe_config: Any) -> Any:
        if moe_config.is_lora_enabled:
            return UnquantizedMoeBackend.CPU, CpuLoraExperts
        return select(moe_config=moe_config)

    method.select_unquantized_moe_backend = selecting


def _adapters(adapter_M: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows [m] of each adapter, and the adapter; -1 is none."""
    for adapter in adapter_M.unique().tolist():
        if adapter >= 0:
            yield (adapter_M == adapter).nonzero().squeeze(1), adapter
