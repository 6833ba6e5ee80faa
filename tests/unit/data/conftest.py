"""A renderer on the tiny model's tokenizer, and files of prompts."""

import json
from pathlib import Path
from typing import Any

import pytest

from lora_rl.data.chat import ChatRenderer
from lora_rl.models.tiny import make_tokenizer


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(512).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def renderer(tokenizer_path) -> ChatRenderer:
    return ChatRenderer(tokenizer_path)


@pytest.fixture
def write_jsonl(tmp_path):
    def write(records: list[dict[str, Any]]) -> str:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return str(path)

    return write
