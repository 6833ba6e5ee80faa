"""Prompts become exactly the text and tokens that the chat template says."""

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from lora_rl.data.chat import ChatRenderer
from lora_rl.errors import ConfigError, DataError
from lora_rl.models.tiny import make_tokenizer


def test_a_text_becomes_one_user_message(renderer):
    assert renderer.render("2 + 2?", None).text == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


def test_the_system_prompt_stands_first(renderer):
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.render("hi", "Be brief.").text == expected
    assert renderer.render([{"role": "user", "content": "hi"}], "Be brief.").text == expected


def test_messages_with_their_own_system_message_keep_it(renderer):
    messages = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "hi"}]
    assert "brief" not in renderer.render(messages, "Be brief.").text


def test_tokens_are_those_of_the_text_and_no_more(renderer, tokenizer_path):
    rendered = renderer.render("the end", None)
    tokenizer = make_tokenizer(512)
    assert tokenizer.decode(rendered.tokens) == rendered.text
    assert rendered.tokens.count(tokenizer.eos_token_id) == 1


def test_a_first_token_that_both_template_and_tokenizer_add_stands_once(tmp_path):
    tokenizer = make_tokenizer(512)
    first, id = "<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, id)])
    tokenizer.chat_template = first + str(tokenizer.chat_template)
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("hi")["input_ids"][0] == id
    assert sum(token == id for token in ChatRenderer(tmp_path).render("hi", None).tokens) == 1


def test_messages_that_the_template_refuses_are_shown(tmp_path):
    tokenizer = make_tokenizer(512)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"refuses \[.*'hi'.*\]: roles must alternate"):
        ChatRenderer(tmp_path).render("hi", None)


def test_a_model_without_chat_template_is_refused(tmp_path):
    tokenizer = make_tokenizer(512)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"no chat template; use an instruction-tuned model"):
        ChatRenderer(tmp_path)
