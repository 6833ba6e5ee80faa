"""The command line as its entry point runs it, in this process."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lora_rl.cli import main

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended; `text` is what it printed on both streams, in one line."""

    status: int
    out: str
    text: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user whose home and environment hold nothing of ours, with enough free memory."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 64 * 2**30}))
    for name in [name for name in os.environ if name.startswith(("AWS_", "LORA_RL_"))]:
        monkeypatch.delenv(name)
    for name in ("RAY_ADDRESS", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LORA_RL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def tiny(folder: Path) -> Path:
    """A copy of examples/tiny.yaml in the working directory."""
    copy = folder / "tiny.yaml"
    copy.write_text((ROOT / "examples" / "tiny.yaml").read_text())
    return copy


@pytest.fixture
def cli(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs `lora-rl` with these arguments. An exception that is none of ours comes through, as its traceback would."""

    def cli(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["lora-rl", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            status = 0
        except SystemExit as exit:
            status = int(exit.code or 0)
        out, err = capfd.readouterr()
        return Ended(status=status, out=out, text=" ".join((out + err).split()))

    return cli
