"""YAML, overrides and the text of faults."""

from pathlib import Path

import pytest

from lora_rl.config import FileData, check_config, load_config
from lora_rl.errors import ConfigError

MINIMAL = """
iterations: 2
model: {name: tiny-qwen3}
data: {type: reasoning_gym, task: chain_sum}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.yaml"
    path.write_text(MINIMAL)
    return path


def test_run_name_is_the_files_name_unless_given(minimal):
    assert load_config(minimal).run_name == "nightly"
    assert load_config(minimal, ["run_name=other"]).run_name == "other"


def test_override_reaches_a_nested_field_and_keeps_its_yaml_type(minimal):
    config = load_config(minimal, ["adapter.optimizer.lr=0.5", "adapter.exclude_modules=[q_proj]"])
    assert config.adapter.optimizer.lr == 0.5
    assert config.adapter.exclude_modules == ("q_proj",)


@pytest.mark.parametrize("override", ["adapter.rank", "=3", "iterations.x=3"])
def test_malformed_override_is_named(minimal, override):
    with pytest.raises(ConfigError, match="--set"):
        load_config(minimal, [override])


def test_all_faults_are_reported_at_once_with_field_and_value():
    values = {
        "iterations": 0,
        "surprise": 1,
        "model": {"name": "m"},
        "data": {"type": "file", "uri": "x.jsonl"},
        "adapter": {"rank": 0, "alpha": -1},
        "store": {"uri": "ftp://somewhere"},
    }
    with pytest.raises(ConfigError) as caught:
        check_config(values)
    text = str(caught.value)
    for expected in (
        "iterations: 0",
        "surprise: unknown key",
        "adapter.rank: 0",
        "adapter.alpha: -1",
        "store.uri: 'ftp",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("adapter.rank=600", "adapter.rank: 600 exceeds trainer.max_rank 64"),
        ("trainer.max_rank=600", "trainer.max_rank: 600 exceeds 512"),
        ("adapter.optimizer.schedule=cosine", "adapter.optimizer.decay_samples: not set"),
        ("sampling.n_samples_per_prompt=1", "sampling.n_samples_per_prompt: 1"),
        ("sampling.max_response_tokens=9000", "engine.max_model_len: 2048 is below"),
        ("trainer.max_tokens_per_gpu=100", "trainer.max_tokens_per_gpu: 100 is below"),
    ],
)
def test_rules_between_sections_name_field_value_and_mend(minimal, override, field):
    with pytest.raises(ConfigError) as caught:
        load_config(minimal, [override])
    assert field in str(caught.value)
    assert ";" in str(caught.value)


def test_one_name_without_brackets_is_told_to_be_a_list(minimal):
    with pytest.raises(
        ConfigError, match=r"adapter.target_modules: 'q_proj': .*must be all-linear or a list, as in \[q_proj\]"
    ):
        load_config(minimal, ["adapter.target_modules=q_proj"])


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", ".hidden", "", "x" * 200])
def test_names_cannot_leave_their_folder(minimal, name):
    with pytest.raises(ConfigError):
        load_config(minimal, [f"adapter.name='{name}'"])
    with pytest.raises(ConfigError):
        load_config(minimal, [f"run_name='{name}'"])


@pytest.mark.parametrize(("text", "what"), [("[1]", "list"), ("a: [", "not valid YAML"), ("", "NoneType")])
def test_file_that_holds_no_sections_is_refused(tmp_path, text, what):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        load_config(path)


def test_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "absent.yaml")


def test_relative_paths_become_absolute(minimal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    config = load_config(minimal, ["data={type: file, uri: rows.jsonl}", "store.uri=kept"])
    assert config.data.uri == str(tmp_path / "rows.jsonl")
    assert config.store.uri == f"file://{tmp_path}/kept"


def test_run_name_and_store_of_the_caller_are_taken_letter_by_letter(minimal):
    config = load_config(minimal, run_name="2024", store="/data/out #1")
    assert (config.run_name, config.store.uri) == ("2024", "file:///data/out #1")


def test_null_run_name_means_the_files_name(minimal):
    minimal.write_text(MINIMAL + "run_name: null\n")
    assert load_config(minimal).run_name == "nightly"


SECRETS = (
    "https://bob:hunter2@host/x.jsonl",
    "s3://hunter2@bucket/x.jsonl",
    "https://host/x.jsonl?X-Amz-Signature=hunter2",
    "https://host/x.jsonl?a=1&access_token=hunter2&b=2",
    "simplecache::https://bob:hunter2@host/x.jsonl",
)
PLACES = {
    "data.uri": "data={{type: file, uri: '{}'}}",
    "data.path": "data={{type: hf, path: '{}'}}",
    "adapter.init": "adapter.init='{}'",
    "model.name": "model.name='{}'",
    "store.uri": "store.uri='{}'",
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_no_secret_comes_into_the_config_nor_into_the_error(minimal, place, secret):
    with pytest.raises(ConfigError) as caught:
        load_config(minimal, [PLACES[place].format(secret)])
    assert place.split(".")[1] in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket/a@b.jsonl", "/data/a@b?token.jsonl", "https://host/x.jsonl?version=3"])
def test_a_uri_without_a_secret_is_taken(minimal, uri):
    config = load_config(minimal, [PLACES["data.uri"].format(uri)])
    assert isinstance(config.data, FileData)
    assert config.data.uri == uri


def test_the_variable_names_the_store_where_nothing_else_does(minimal, monkeypatch):
    monkeypatch.setenv("LORA_RL_STORE", "/of/variable")
    assert load_config(minimal).store.uri == "file:///of/variable"
    assert load_config(minimal, store="/typed").store.uri == "file:///typed"
    assert load_config(minimal, ["store.uri=/set"]).store.uri == "file:///set"
    minimal.write_text(MINIMAL + "store: {uri: /of/file}\n")
    assert load_config(minimal).store.uri == "file:///of/file"
    monkeypatch.setenv("LORA_RL_STORE", "ftp://host")
    assert load_config(minimal).store.uri == "file:///of/file"
