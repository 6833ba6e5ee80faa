"""Samples in a table: short, on one line, and never rendered."""

import re

import pytest

from lora_rl.tracking.samples import TEXT_LIMIT, last_turn, sample_table
from tests.builders import make_group, make_sample


def _rows(table: str) -> list[str]:
    return table.splitlines()[2:]


def test_the_first_sample_of_each_prompt_is_shown_up_to_the_limit():
    groups = [make_group(f"0/{n}", [n / 10, 1.0], response_text=f"answer {n}") for n in range(5)]
    rows = _rows(sample_table([sample for group in groups for sample in group], limit=3))
    assert [row.split("|")[2].strip() for row in rows] == ["answer 0", "answer 1", "answer 2"]
    assert [row.split("|")[4].strip() for row in rows] == ["0.00", "0.10", "0.20"]


def test_a_sample_without_reward_or_label_has_a_dash_and_an_empty_cell():
    (row,) = _rows(sample_table([make_sample(label=None)], limit=1))
    assert row.endswith("|  | - |")


@pytest.mark.parametrize(
    "text",
    ["a | b", "![see](http://host/pixel.png)", "<img src=x>", "# title", "`code`", "$x$", "\\| x", "&lt;", "**bold**"],
)
def test_what_the_model_writes_is_escaped(text):
    (row,) = _rows(sample_table([make_sample(response_text=text)], limit=1))
    cell = row.split(" | ", 1)[1].rsplit(" | ", 2)[0]
    assert re.findall(r"(?<!\\)[|\[\]<#`$&*]", cell.replace("\\\\", "")) == []
    assert "".join(cell.split("\\")).replace(" ", "") == "".join(text.split("\\")).replace(" ", "")


def test_long_texts_are_cut_and_lines_joined():
    (row,) = _rows(sample_table([make_sample(response_text="so\n" * 500, prompt_text="why? " * 500)], limit=1))
    assert "so so so" in row
    assert row.count("…") == 2
    assert len(row) < 3 * TEXT_LIMIT


@pytest.mark.parametrize(
    "prompt",
    [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2\n= ?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n2 + 2\n= ?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n2 + 2\n= ?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<s>[INST] 2 + 2\n= ? [/INST]",
        "2 + 2\n= ?",
    ],
)
def test_the_last_turn_is_found_in_common_chat_templates(prompt):
    assert last_turn(make_sample(prompt_text=prompt)) == "2 + 2 = ?"


def test_a_prompt_of_nothing_but_template_has_an_empty_last_turn():
    assert last_turn(make_sample(prompt_text="<|im_start|> <|im_end|>")) == ""
