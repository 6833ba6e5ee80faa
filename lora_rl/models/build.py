"""Directories that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def build_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Run `fill` on an empty directory beside `path`, then rename it to `path`.

    A builder that loses a race leaves the winner's directory; a `fill` that raises leaves nothing.
    Raises FileExistsError where `path` was there before.
    """
    if path.exists():
        raise FileExistsError(f"{path}: already there; remove it to build it again")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        whole = Path(scratch) / path.name
        whole.mkdir()
        fill(whole)
        try:
            whole.rename(path)
        except OSError:
            # A directory cannot be renamed onto a filled one: somebody else finished first.
            if not path.is_dir():
                raise
            shutil.rmtree(whole)


def save_model(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write both in Hugging Face format to a directory, as `build_directory` does."""

    def fill(directory: Path) -> None:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    build_directory(path, fill)
