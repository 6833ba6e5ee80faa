"""What a model's directory must hold."""

import json
from pathlib import Path

PARTS = {
    "config.json": ("config.json",),
    "weights (*.safetensors)": ("*.safetensors",),
    "a tokenizer (tokenizer.json or tokenizer.model)": ("tokenizer.json", "tokenizer.model"),
}


def missing_parts(directory: Path, *, chat_template: bool = False) -> list[str]:
    """What `directory` lacks of a model in Hugging Face format, by name; `chat_template` asks for one too."""
    missing = [part for part, patterns in PARTS.items() if not any(any(directory.glob(p)) for p in patterns)]
    if chat_template and not _has_chat_template(directory):
        missing.append("a chat template (chat_template.jinja)")
    return missing


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((directory / "tokenizer_config.json").read_text()).get("chat_template"))
    except FileNotFoundError:
        return False
