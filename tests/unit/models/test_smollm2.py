"""The small real model, as converted, answers as it should."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from lora_rl.models.smollm2 import convert_smollm2


@pytest.mark.slow
def test_converted_smollm2_knows_the_capital_of_france_and_stops(tmp_path):
    directory = convert_smollm2(tmp_path / "smollm2")
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
