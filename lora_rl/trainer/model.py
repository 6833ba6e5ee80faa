"""The frozen base: a Hugging Face directory as a Megatron GPTModel."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from transformers import AutoConfig, PreTrainedConfig

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.trainer import moe
from lora_rl.trainer.attention import Layout, PackedParams, PackedSelfAttention
from lora_rl.trainer.megatron_compat import (
    MLP,
    AutoBridge,
    GPTModel,
    IdentityOp,
    get_gpt_layer_local_spec,
    process_groups,
    quiet,
)
from lora_rl.trainer.memory import free_bytes, refuse_too_large
from lora_rl.trainer.model_rules import SPARSE, model_faults
from lora_rl.trainer.pointwise import swiglu
from lora_rl.trainer.ranks import Groups
from lora_rl.trainer.topology import topology_faults

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

FUSIONS = (
    "gradient_accumulation_fusion",
    "bias_dropout_fusion",
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "apply_rope_fusion",
    "persist_layer_norm",
    "cross_entropy_loss_fusion",
)
"""Kernels that need Apex or Transformer Engine."""


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """The base, this rank's share of it. T packed rows, D width, V vocabulary."""

    gpt: GPTModel
    device: torch.device
    dtype: torch.dtype
    fingerprint: str
    """sha256 over the weight files."""
    vocab_size: int
    num_layers: int
    hidden_size: int
    groups: Groups

    @property
    def sparse(self) -> bool:
        """Whether layers have experts."""
        config: Any = self.gpt.config
        return config.num_moe_experts is not None

    @property
    def tp_group(self) -> Any:
        return self.groups.tp

    @property
    def tp(self) -> int:
        return self.tp_group.size()

    @property
    def head_VD(self) -> Tensor:
        """This rank's rows [V / tp, D] of the output projection, on the last stage of the pipeline."""
        tied = self.gpt.share_embeddings_and_output_weights
        head: Any = self.gpt.shared_embedding_or_output_weight() if tied else self.gpt.output_layer.weight
        return head

    def hidden_TD(
        self, tokens_T: Tensor, positions_T: Tensor, layout: Layout, received_TD: Tensor | None = None
    ) -> Tensor:
        """Output [T, D] of this stage's last layer, the model's last one normed.

        Row t stands at `positions_T[t]` of its sequence. `received_TD` is the output of the stage before, if there is
        one.
        """
        embedded = None
        if received_TD is None:
            embedded = self.gpt.embedding(input_ids=tokens_T[None], position_ids=positions_T[None])
            if self.groups.ep.size() > 1 and torch.is_grad_enabled():
                # Gradients must come back through every layer, if others' rows need them from this rank's experts.
                embedded.requires_grad_()
        else:
            self.gpt.set_input_tensor(received_TD[:, None])
        rotary: Any = self.gpt.rotary_pos_emb
        angles_TE = rotary.get_emb(layout.longest)[:, 0, 0].index_select(0, positions_T)
        packed = PackedParams(
            qkv_format="thd",
            layout=layout,
            cos_TE=angles_TE.cos().to(self.dtype),
            sin_TE=angles_TE.sin().to(self.dtype),
        )
        hidden = self.gpt.decoder(hidden_states=embedded, attention_mask=None, packed_seq_params=packed)
        return hidden[:, 0]


def build_model(
    path: str | Path, *, dtype: str, device: torch.device, trainer: TrainerConfig = TrainerConfig()
) -> FrozenModel:
    """This rank's share of the model in `path`, with frozen weights; the layout's process groups must stand.

    Raises TrainerError for a model that cannot be loaded, be split so, find room, or that Megatron would compute
    differently.
    """
    path = Path(path)
    try:
        hf_config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise TrainerError(f"{path}: no model config ({error}); give a directory in Hugging Face format") from error
    _refuse_unsupported(path, hf_config, trainer)
    torch_dtype = DTYPES[dtype]
    refuse_too_large(path, torch_dtype, trainer, free_bytes(device))
    with quiet():
        bridge = AutoBridge.from_hf_pretrained(str(path), dtype=torch_dtype)
        provider = bridge.to_megatron_provider(load_weights=False)
        settings = _settings(hf_config, torch_dtype, trainer, on_cpu=device.type == "cpu")
        for name, value in settings.items():
            setattr(provider, name, value)
        provider.finalize()
        _compare(path, provider, settings | _expected(hf_config))
        (gpt,) = provider.provide_distributed_model(
            wrap_with_ddp=False, use_cpu_initialization=device.type == "cpu", mixed_precision_wrapper=None
        )
        _load_weights(path, bridge, gpt, torch_dtype)
    gpt.to(device).train()
    layers: Any = gpt.decoder.layers
    for layer in layers:
        layer.self_attention.sort_rows()
    if trainer.recompute:
        for layer in layers:
            layer.forward = _recomputed(layer.forward)
    return FrozenModel(
        gpt=gpt,
        device=device,
        dtype=torch_dtype,
        fingerprint=weights_fingerprint(path),
        vocab_size=hf_config.vocab_size,
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        groups=process_groups(device),
    )


def weights_fingerprint(path: Path) -> str:
    """sha256 over the names and bytes of the safetensors files in `path`."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _refuse_unsupported(path: Path, hf_config: PreTrainedConfig, trainer: TrainerConfig) -> None:
    faults = model_faults(hf_config.to_dict()) or topology_faults(trainer, hf_config.to_dict())
    if faults:
        raise TrainerError(f"{path}: " + "; ".join(faults))


def _settings(
    hf_config: PreTrainedConfig, dtype: torch.dtype, trainer: TrainerConfig, *, on_cpu: bool
) -> dict[str, Any]:
    """What we ask of the provider beyond the model's own config."""
    return {
        **(moe.SETTINGS if _is_sparse(hf_config) else {}),
        "tensor_model_parallel_size": trainer.tensor_parallel,
        "pipeline_model_parallel_size": trainer.pipeline_parallel,
        "transformer_layer_spec": _layer_spec,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu_initialization": on_cpu,
        # Every weight is loaded afterwards.
        "perform_initialization": False,
        **dict.fromkeys(FUSIONS, False),
    }


def _layer_spec(config: Any) -> Any:
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
    attention, mlp = spec.submodules.self_attention, spec.submodules.mlp
    attention.module, attention.submodules.core_attention = PackedSelfAttention, IdentityOp
    if config.num_moe_experts is not None:
        spec.submodules.mlp = moe.SparseMlp
    else:
        spec.submodules.mlp = partial(SwigluMlp.as_mlp_submodule, submodules=mlp.keywords["submodules"])
    return spec


class SwigluMlp(MLP):
    """Megatron's feed-forward block with our one kernel between its two products."""

    def forward(self, hidden_states: Tensor, **unused: Any) -> tuple[Tensor, Tensor | None]:
        up: Any = self.linear_fc1
        down: Any = self.linear_fc2
        gate_up, _ = up(hidden_states)
        return down(swiglu(gate_up))


def _is_sparse(hf_config: PreTrainedConfig) -> bool:
    return hf_config.architectures == [SPARSE]


def _expected(hf_config: PreTrainedConfig) -> dict[str, Any]:
    """Provider fields that must follow from the Hugging Face config."""
    rope = hf_config.rope_parameters
    architecture = (hf_config.architectures or ["none"])[0]
    head_dim = hf_config.to_dict().get("head_dim") or hf_config.hidden_size // hf_config.num_attention_heads
    return {
        "num_layers": hf_config.num_hidden_layers,
        "hidden_size": hf_config.hidden_size,
        "ffn_hidden_size": hf_config.intermediate_size,
        "num_attention_heads": hf_config.num_attention_heads,
        "num_query_groups": hf_config.num_key_value_heads,
        "kv_channels": head_dim,
        "vocab_size": hf_config.vocab_size,
        "rotary_base": rope["rope_theta"],
        "rope_scaling": rope["rope_type"] == "llama3",
        **({"rope_scaling_factor": rope["factor"]} if rope["rope_type"] == "llama3" else {}),
        "layernorm_epsilon": hf_config.rms_norm_eps,
        "share_embeddings_and_output_weights": hf_config.tie_word_embeddings,
        "add_qkv_bias": architecture == "Qwen2ForCausalLM",
        "qk_layernorm": architecture in ("Qwen3ForCausalLM", SPARSE),
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        **(moe.expected_fields(hf_config) if _is_sparse(hf_config) else {}),
    }


def _compare(path: Path, provider: Any, expected: dict[str, Any]) -> None:
    differing = [
        f"{name} {getattr(provider, name)!r} instead of {value!r}"
        for name, value in expected.items()
        if getattr(provider, name) != value
    ]
    if differing:
        raise TrainerError(f"{path}: Megatron-Bridge resolved {', '.join(differing)}; use the pinned versions")


def _load_weights(path: Path, bridge: AutoBridge, gpt: GPTModel, dtype: torch.dtype) -> None:
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.requires_grad_(False)
            parameter.data = torch.full_like(parameter, torch.nan, dtype=dtype)
    try:
        bridge.load_hf_weights([gpt])
        if gpt.config.num_moe_experts is not None:
            moe.load_sparse(path, gpt, dtype)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise TrainerError(f"{path}: weights cannot be loaded ({error}); save the model again") from error
    # A name that the bridge does not map is skipped with a warning: the NaN shows it.
    unset = [name for name, parameter in gpt.named_parameters() if not parameter.isfinite().all()]
    if unset:
        raise TrainerError(f"{path}: no finite weights for {', '.join(unset)}; save the model again")


def _recomputed(forward: Any) -> Any:
    """Megatron's own recompute is re-entrant: with a frozen embedding it would give LoRA no gradient at all."""

    def recomputing(*args: Any, **kwargs: Any) -> Any:
        # Stopped early, inside our autograd function, a layer's recomputation stays in memory to the end of the pass.
        with set_checkpoint_early_stop(False):
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return recomputing
