"""Random models of two small layers, with a real tokenizer and chat template: no network, seconds to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from lora_rl.errors import ConfigError
from lora_rl.models.build import save_model

PAD_TOKEN, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LETTERS = "etaoinshrdlucmfw"
"""The pairs of these are the merges: 256 of them, so no training corpus is needed."""

Family = Literal["qwen3", "qwen3_moe", "qwen2", "llama"]


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Sizes of a tiny model. `heads` and `kv_heads` allow tensor parallelism of 2."""

    vocab: int = 512
    """Tokens V: 256 bytes, 3 special ones, the rest letter pairs; 259 to 515."""
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    """vLLM's attention on a CPU has no kernel for 16."""
    ffn: int = 128
    max_positions: int = 2048
    experts: int = 8
    """Experts E of a layer, of which a token takes two; `expert_ffn` is the width of each."""
    expert_ffn: int = 32


def make_tiny_qwen3(
    path: str | Path,
    *,
    seed: int = 0,
    tie_embeddings: bool = True,
    shape: TinyShape = TinyShape(),
) -> Path:
    """A random fp32 Qwen3 (norms on q and k) at `path`; the same seed gives the same bytes.

    Raises FileExistsError where `path` exists.
    """
    return _make("qwen3", path, seed, tie_embeddings, shape)


def make_tiny_qwen3_moe(
    path: str | Path,
    *,
    seed: int = 0,
    tie_embeddings: bool = True,
    shape: TinyShape = TinyShape(),
    norm_topk_prob: bool = True,
) -> Path:
    """As `make_tiny_qwen3`, a Qwen3-MoE: experts in every layer, whose weights add to 1 with `norm_topk_prob`."""
    return _make("qwen3_moe", path, seed, tie_embeddings, shape, norm_topk_prob=norm_topk_prob)


def make_tiny_qwen2(
    path: str | Path,
    *,
    seed: int = 0,
    tie_embeddings: bool = True,
    shape: TinyShape = TinyShape(),
) -> Path:
    """As `make_tiny_qwen3`, a Qwen2: bias on q, k and v, no norms on them, head_dim = hidden / heads."""
    return _make("qwen2", path, seed, tie_embeddings, shape)


def make_tiny_llama(
    path: str | Path,
    *,
    seed: int = 0,
    tie_embeddings: bool = True,
    shape: TinyShape = TinyShape(),
) -> Path:
    """As `make_tiny_qwen3`, a Llama: neither bias nor norms on q and k."""
    return _make("llama", path, seed, tie_embeddings, shape)


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of exactly `vocab` tokens with a ChatML template: any text round-trips, any id decodes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [PAD_TOKEN, TURN_START, TURN_END]
    pairs = [(first, second) for first in LETTERS for second in LETTERS]
    num_merges = vocab - len(special) - len(alphabet)
    if not 0 <= num_merges <= len(pairs):
        smallest = len(special) + len(alphabet)
        raise ConfigError(
            f"vocab: {vocab} is outside {smallest} to {smallest + len(pairs)}, what this tokenizer can have"
        )
    merges = pairs[:num_merges]
    tokens = [*special, *alphabet, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PAD_TOKEN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _make(family: Family, path: str | Path, seed: int, tie_embeddings: bool, shape: TinyShape, **fields: Any) -> Path:
    path = Path(path)
    tokenizer = make_tokenizer(shape.vocab)
    model = _random_model(family, seed, tie_embeddings, shape, tokenizer, fields)
    save_model(path, model, tokenizer)
    return path


def _random_model(
    family: Family,
    seed: int,
    tie_embeddings: bool,
    shape: TinyShape,
    tokenizer: PreTrainedTokenizerFast,
    fields: dict[str, Any],
) -> PreTrainedModel:
    config = _config(
        family,
        shape,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **fields,
    )
    model = _MODEL_CLASSES[family](config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            # A router that is sure of its choice: rounding then does not change who computes a token.
            scale = 0.5 if name.endswith(".gate.weight") else 0.05
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else scale * noise)
    return model


def _config(family: Family, shape: TinyShape, **values: Any) -> PreTrainedConfig:
    match family:
        case "qwen3":
            return Qwen3Config(**values)
        case "qwen3_moe":
            return Qwen3MoeConfig(
                **values, num_experts=shape.experts, num_experts_per_tok=2, moe_intermediate_size=shape.expert_ffn
            )
        case "qwen2":
            return Qwen2Config(**{key: value for key, value in values.items() if key != "head_dim"})
        case "llama":
            return LlamaConfig(**values)


_MODEL_CLASSES = {
    "qwen3": Qwen3ForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "llama": LlamaForCausalLM,
}
