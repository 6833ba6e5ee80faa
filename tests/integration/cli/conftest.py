"""The installed command against the session's workstation."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.store import RunRecords, open_store

ROOT = Path(__file__).parents[3]
TINY = ROOT / "examples" / "tiny.yaml"
PROGRAM = str(Path(sys.executable).with_name("lora-rl"))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    text: str
    seconds: float


@pytest.fixture(scope="session")
def cli(cluster_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs `lora-rl` as a user of the workstation; `status` is what it must exit with."""
    folder = tmp_path_factory.mktemp("user")

    def cli(*arguments: str | Path, status: int = 0, **environment: str) -> Ended:
        begun = time.monotonic()
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            env=cluster_environment | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        text = done.stdout + done.stderr
        assert done.returncode == status, f"{done.returncode}\n{text[-4000:]}"
        assert "Traceback" not in text, text[-4000:]
        return Ended(status=status, text=text, seconds=time.monotonic() - begun)

    return cli


def records_of(run: str, store: str) -> RunRecords:
    """The records of a run in the store at the URI `store`."""
    return RunRecords(open_store(StoreConfig(uri=store)), run)
