from typing import Any

import pytest
from transformers import AutoTokenizer

from lora_rl.engine.stop_texts import Stops, cut_at_stop, ends_with_stop, stops_of
from lora_rl.errors import EngineError
from lora_rl.models.tiny import make_tiny_qwen3

WORDS = ["a", "b", "</", "answer", ">", "\n", "", "Ä"]


def decode(tokens: list[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two", ("x",), "one two"),
        ("one two", (), "one two"),
        ("one two", ("two", "e"), "on"),
        ("stop", ("stop",), ""),
        ("a</answer>b</answer>", ("</answer>",), "a"),
    ],
)
def test_text_ends_before_the_first_stop(text: str, stops: tuple[str, ...], expected: str):
    assert cut_at_stop(text, stops) == expected


def test_a_stop_text_of_several_tokens_is_found_with_its_last():
    tokens = [0, 1, 2, 3, 4]
    assert [ends_with_stop(decode, tokens[:n], ["</answer>"]) for n in range(1, 6)] == [False] * 4 + [True]


def test_a_stop_text_inside_the_last_token_is_found():
    assert ends_with_stop(decode, [0, 3], ["swe"])


def test_only_the_end_of_a_long_answer_is_decoded():
    seen = []

    def counting(tokens: list[int]) -> str:
        seen.append(len(tokens))
        return decode(tokens)

    assert ends_with_stop(counting, [0] * 10_000 + [5], ["\n"])
    assert seen[0] < 20


def test_each_stop_text_counts():
    assert ends_with_stop(decode, [0, 1], ["x", "b"])
    assert not ends_with_stop(decode, [0, 1], ["x", "y"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(make_tiny_qwen3(tmp_path_factory.mktemp("model") / "tiny-qwen3"))


def test_special_tokens_end_an_answer_by_their_number(tokenizer: Any):
    wanted = ("</answer>", "<|im_end|>", "\n", " ", "<|im_start|>")
    numbers = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|im_start|>")]
    assert stops_of(tokenizer, wanted) == Stops(texts=["</answer>", "\n", " "], tokens=numbers)
    assert stops_of(tokenizer, ()) == Stops(texts=[], tokens=[])


@pytest.mark.parametrize("stop", ["<|im_end|>\n", "a<|im_start|>", "<|im_end|><|im_end|>"])
def test_a_stop_text_that_no_answer_could_show_is_refused(tokenizer: Any, stop: str):
    with pytest.raises(EngineError, match=r"sampling\.stop: .* has a special token"):
        stops_of(tokenizer, (stop,))
