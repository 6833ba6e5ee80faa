"""Prompts `0 + 0?`, `1 + 1?` ... with their answers, under one adapter."""

import json
from pathlib import Path

import pytest

from lora_rl.config import FileData, SamplingConfig
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.sources import PromptSource, open_source
from lora_rl.models.tiny import make_tokenizer
from lora_rl.store.refs import AdapterRef
from tests.builders import make_adapter_ref


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_tokenizer(512).save_pretrained(directory)
    return directory


@pytest.fixture
def data(tmp_path) -> FileData:
    rows = ({"prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(20))
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileData(uri=str(path), shuffle=False)


@pytest.fixture
def source(data, model_path) -> PromptSource:
    return open_source(data, ChatRenderer(model_path), seed=0)


@pytest.fixture
def sampling() -> SamplingConfig:
    return SamplingConfig(rollout_batch_size=4, n_samples_per_prompt=2)


@pytest.fixture
def adapter() -> AdapterRef:
    return make_adapter_ref("default", 3)
