"""Tiny models are complete: transformers loads them, text round-trips, the same seed gives the same bytes."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lora_rl.errors import ConfigError
from lora_rl.models.tiny import (
    TURN_END,
    TinyShape,
    make_tiny_llama,
    make_tiny_qwen2,
    make_tiny_qwen3,
    make_tiny_qwen3_moe,
    make_tokenizer,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny")


def _weights_sha256(directory: Path) -> str:
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("make", [make_tiny_qwen3, make_tiny_qwen3_moe, make_tiny_qwen2, make_tiny_llama])
def test_transformers_loads_every_family_and_generates(make, tmp_path):
    directory = make(tmp_path / "tiny")
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    tokens = AutoTokenizer.from_pretrained(directory)("two and two", return_tensors="pt")["input_ids"]
    answer = model.generate(tokens, max_new_tokens=4, do_sample=False)
    assert model.dtype == torch.float32
    assert answer.shape[1] > tokens.shape[1]


def test_same_seed_gives_the_same_weights_and_another_seed_gives_others(tiny, tmp_path):
    again = make_tiny_qwen3(tmp_path / "again")
    other = make_tiny_qwen3(tmp_path / "other", seed=1)
    assert _weights_sha256(again) == _weights_sha256(tiny)
    assert _weights_sha256(other) != _weights_sha256(tiny)


def test_config_says_rope_base_eos_and_whether_embeddings_are_tied(tiny, tmp_path):
    untied = make_tiny_qwen3(tmp_path / "untied", tie_embeddings=False)
    config, tokenizer = AutoConfig.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    assert config.rope_parameters["rope_theta"] == 1e6
    assert config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(TURN_END)
    assert config.tie_word_embeddings
    assert not AutoConfig.from_pretrained(untied).tie_word_embeddings


def test_any_text_round_trips_and_any_id_decodes(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    text = "The answer is 12 + 7 = 19.\n\n  é漢字 \t🙂"
    assert len(tokenizer) == AutoConfig.from_pretrained(tiny).vocab_size == 512
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert all(tokenizer.decode([token]) for token in range(512))


def test_common_letter_pairs_are_one_token():
    assert len(make_tokenizer(512)("the")["input_ids"]) == 2


def test_chat_template_marks_turns_with_special_tokens(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer(text)["input_ids"].count(tokenizer.eos_token_id) == 1


def test_vocabulary_outside_what_the_tokenizer_can_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="vocab: 1000 is outside 259 to 515"):
        make_tiny_qwen3(tmp_path / "tiny", shape=TinyShape(vocab=1000))
    assert not (tmp_path / "tiny").exists()
