"""One form for all results: a dated section with machine, versions and command above its tables."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from lora_rl.store import versions

RESULTS = Path(__file__).parent / "results"
SHARED_MACHINE = "Absolute times are indicative only: the machine is shared. Compare numbers within one run."


def append_result(path: Path, *, title: str, body: str) -> None:
    """Appends a section with `body` (markdown) to the result file `path`, and prints it."""
    section = f"\n## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n\n{facts()}\n\n{body}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    caution = f"{SHARED_MACHINE}\n" if device_kind() == "cpu" else ""
    before = path.read_text() if path.exists() else f"# {title}\n\n{caution}"
    path.write_text(before + section)
    print(section)


def facts() -> str:
    """Device, command and versions of this process."""
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    return f"{device_name()}. `{command}`\n\n{', '.join(f'{name} {version}' for name, version in versions().items())}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """A markdown table; all columns but the first are numbers, or none is."""
    lines = [header, ["---", *["---:" if numbers else "---"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def device_kind() -> str:
    """`gpu` or `cpu`: what the results of this machine are filed under."""
    return "gpu" if _cards() else "cpu"


def device_name() -> str:
    """The GPUs of this machine with driver and memory, or its CPU with cores and load."""
    if cards := _cards():
        return f"{len(cards)} x {cards[0]}"
    return f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 minutes"


def cpu_name() -> str:
    """Model of this machine's first CPU, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def _cards() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
