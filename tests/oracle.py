"""The trainer's objective by transformers and PEFT, one sample at a time and in plain formulas."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from lora_rl.data.types import Sample

PREFIX = "base_model.model."


def base_model(path: str | Path) -> Any:
    """The base by transformers, float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def peft_from_directory(path: str | Path, directory: str | Path) -> Any:
    """The base with a PEFT directory loaded as any user would."""
    return PeftModel.from_pretrained(base_model(path), str(directory)).eval()


def trainable_peft_from_directory(path: str | Path, directory: str | Path) -> Any:
    """As `peft_from_directory`, with trainable LoRA weights."""
    return PeftModel.from_pretrained(base_model(path), str(directory), is_trainable=True)


def gradients_with_experts(model: Any, rank: int) -> dict[str, Tensor]:
    """Gradients under the trainer's names, from PEFT's, which has one A and B for all experts of a layer.

    `experts.base_layer` is gate and up: A [E 2R, K], B [2N, 2R E] with a block each; `experts` is down.
    """
    gradients = {}
    for name, parameter in lora_parameters(model).items():
        gradient: Any = parameter.grad
        if ".mlp.experts." not in name:
            gradients[name] = gradient
            continue
        layer, _, rest = name.partition(".experts.")
        stacked, end = f"{layer}.experts.*", rest.removeprefix("base_layer.")
        num_ranks = 2 * rank if rest.startswith("base_layer.") else rank
        if end == "lora_A.weight":
            gradient_ERK = gradient.unflatten(0, (-1, num_ranks))
        else:
            gradient_ERK = gradient.unflatten(1, (num_ranks, -1)).permute(2, 0, 1)
        if not rest.startswith("base_layer."):
            gradients[f"{stacked}.down_proj.{end}"] = gradient_ERK
        elif end == "lora_A.weight":
            gradients[f"{stacked}.gate_proj.{end}"], gradients[f"{stacked}.up_proj.{end}"] = gradient_ERK.chunk(2, 1)
        else:
            gate, up = gradient_ERK.chunk(2, 1)
            gradients[f"{stacked}.gate_proj.{end}"] = gate[..., :rank]
            gradients[f"{stacked}.up_proj.{end}"] = up[..., rank:]
    return gradients


def peft_from_weights(path: str | Path, weights: Mapping[str, Tensor], *, rank: int, alpha: float) -> Any:
    """The base with trainable LoRA weights, named `<projection>.lora_{A,B}.weight`."""
    targets = sorted({name.split(".")[-3] for name in weights})
    config = LoraConfig(r=rank, lora_alpha=int(alpha), target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    model = get_peft_model(base_model(path), config)
    parameters = lora_parameters(model)
    for name, weight in weights.items():
        parameters[name].data.copy_(weight)
    return model


def lora_parameters(model: Any) -> dict[str, Tensor]:
    """Trainable parameters under the trainer's names."""
    return {
        name.removeprefix(PREFIX).replace(".default", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """Logits [len, V] of one sequence in float32, without padding."""
    return model(torch.tensor([list(tokens)], device=model.device)).logits[0].float()


def response_logp(model: Any, sample: Sample, temperature: float = 1.0) -> Tensor:
    """Log-probability of each response token."""
    tokens = [*sample.prompt_tokens, *sample.response_tokens]
    logp_TV = (logits(model, tokens) / temperature).log_softmax(-1)
    first = len(sample.prompt_tokens) - 1
    return torch.stack([logp_TV[first + i, token] for i, token in enumerate(sample.response_tokens)])


def grpo_loss(model: Any, samples: Sequence[Sample], *, eps: float = 0.2, temperature: float = 1.0) -> Tensor:
    """GRPO with PPO's clip and the mean over all response tokens; the ratio is against the engine."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt_id, []).append(sample.reward or 0.0)
    total, num_tokens = torch.zeros(()), 0
    for sample in samples:
        rewards = torch.tensor(groups[sample.prompt_id])
        advantage = ((sample.reward or 0.0) - rewards.mean()) / (rewards.std() + 1e-6)
        logp = response_logp(model, sample, temperature).cpu()
        ratio = (logp - torch.tensor(sample.logp_rollout)).exp()
        total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * advantage).sum()
        num_tokens += len(sample.response_tokens)
    return total / num_tokens


def write_peft_directory(directory: Path, weights: bytes, config: bytes) -> Path:
    """The two files of an export as a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    (directory / "adapter_config.json").write_bytes(config)
    return directory


def save_peft(model: Any, directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """PEFT's own export: tensors and config as it wrote them."""
    model.save_pretrained(directory)
    tensors = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    return tensors, json.loads((directory / "adapter_config.json").read_text())
