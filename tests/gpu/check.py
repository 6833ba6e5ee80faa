"""Does the whole system hold on this machine's accelerator? Runs section by section and writes what it finds.

    python -m tests.gpu.check --out DIR [--only parity,engine] [--tiny]

Sections: parity, joint, recompute, experts (the trainer); engine and engine_float16 (vLLM and a trainer, in bfloat16
and in float16); flow (a run that is killed and goes on). On a GPU these three parts run side by side, at most nine
minutes and about six on an H200. layouts (runs on two GPUs) is for `--only` alone. DIR gets check.md and check.json,
both written anew after every finding, and check.log.
`--tiny` takes tiny models and runs on a CPU too. A part runs in a process with a deadline: one that crashes or hangs
costs the others nothing. Exits 1 where a rule is broken.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from benchmarks.report import device_kind, device_name, table
from lora_rl.store import versions
from tests.gpu.findings import Finding, Findings
from tests.gpu.scale import Scale

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """Sections that run in one process, one after the other."""

    module: str
    """Has a function for each section, of the section's name, that takes `Findings` and `Scale`."""
    sections: tuple[str, ...]
    deadline_s: float


PARTS = (
    Part("tests.gpu.trainer_sections", ("parity", "joint", "recompute", "experts"), 400),
    Part("tests.gpu.engine_sections", ("engine", "engine_float16"), 400),
    Part("tests.gpu.flow_sections", ("flow",), 500),
    Part("tests.gpu.flow_sections", ("layouts",), 540),
)
SECTIONS = tuple(section for part in PARTS for section in part.sections)
ALONE = "layouts"
"""Takes all GPUs and the machine's Ray and Prefect."""


@dataclass
class Report:
    """All findings so far, in DIR."""

    folder: Path
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, str] = field(default_factory=dict)
    """Of each part, and its deadline."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    device: str = field(default_factory=device_name)

    def add(self, finding: Finding) -> None:
        with self.lock:
            self.findings.append(finding)
            self.write()

    def ended(self, part: Part, seconds: float) -> None:
        with self.lock:
            self.seconds[" + ".join(part.sections)] = f"{seconds:.0f} of {part.deadline_s:.0f} s"
            self.write()

    def write(self) -> None:
        facts = {"device": self.device, "versions": versions(), "command": sys.argv[1:], "seconds": self.seconds}
        findings = [asdict(finding) for finding in self.findings]
        (self.folder / "check.json").write_text(json.dumps(facts | {"findings": findings}, indent=1))
        times = ", ".join(f"{name}: {seconds}" for name, seconds in self.seconds.items())
        used = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        broken = sum(finding.ok is False for finding in self.findings)
        kept = sum(finding.ok is True for finding in self.findings)
        rows = table(
            ["section", "what", "value", "rule", "holds"], [finding.row() for finding in self.findings], numbers=False
        )
        text = f"# Check\n\n{facts['device']}\n\n{used}\n\n{kept} rules hold, {broken} do not. {times}\n\n{rows}\n"
        (self.folder / "check.md").write_text(text)

    @property
    def passed(self) -> bool:
        return all(finding.ok is not False for finding in self.findings)


def run_part(part: Part, arguments: argparse.Namespace, report: Report, log: IO[str]) -> None:
    """Runs the part's sections in a process of their own and takes down what they find."""
    print(f"== {', '.join(part.sections)}: at most {part.deadline_s:.0f} s", flush=True)
    began = time.perf_counter()
    within = f"{part.module}:{','.join(part.sections)}"
    command = [sys.executable, "-u", "-m", "tests.gpu.check", "--within", within, "--out", str(arguments.out)]
    process = subprocess.Popen(
        [*command, *(["--tiny"] if arguments.tiny else [])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def follow() -> None:
        for line in process.stdout or ():
            finding = Finding.of_line(line)
            if finding is not None:
                report.add(finding)
                line = f"   {' | '.join(finding.row())}\n"
            log.write(line)
            log.flush()
            print(line, end="", flush=True)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        code = process.wait(part.deadline_s)
        how = "" if code == 0 else f"ended with {code}"
    except subprocess.TimeoutExpired:
        how = f"did not end within {part.deadline_s:.0f} s"
    finally:
        # what a section started and left, too; servers of a workstation have sessions of their own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    reader.join(60)
    if how:
        report.add(Finding(section=part.sections[0], name="process", value=how, rule="ends with 0", ok=False))
    report.ended(part, time.perf_counter() - began)


def run_parts(parts: Sequence[Part], arguments: argparse.Namespace, report: Report, log: IO[str]) -> None:
    """Runs parts side by side on a GPU, and one after the other where the cores are what they compute on."""
    at_once = len(parts) if device_kind() == "gpu" else 1
    with ThreadPoolExecutor(at_once) as threads:
        for running in [threads.submit(run_part, part, arguments, report, log) for part in parts]:
            running.result()


def run_within(module: str, sections: Sequence[str], scale: Scale) -> None:
    """Runs sections in this process; one that fails leaves the next its turn."""
    for section in sections:
        findings = Findings(section)
        began = time.perf_counter()
        try:
            getattr(importlib.import_module(module), section)(findings, scale)
        # The border between sections: whatever it was, the others are worth their turn.
        except BaseException as error:
            findings.failed(error)
        findings.note("seconds", time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    default = ",".join(section for section in SECTIONS if section != ALONE)
    parser.add_argument("--only", default=default, help=f"some of {default}; or {ALONE}")
    parser.add_argument("--tiny", action="store_true", help="tiny models and few samples")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    if arguments.within:
        module, _, sections = arguments.within.partition(":")
        run_within(module, sections.split(","), Scale(tiny=arguments.tiny))
        return
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(SECTIONS)}")
    if ALONE in chosen and len(chosen) > 1:
        parser.error(f"--only: {ALONE} takes the whole machine; give it alone")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = Report(arguments.out)
    scratch = tempfile.TemporaryDirectory(prefix="lora-rl-check-", ignore_cleanup_errors=True)
    with scratch as home, (arguments.out / "check.log").open("w") as log:
        os.environ.setdefault("LORA_RL_HOME", home)
        # On a machine whose memory grows as it is used Ray would see it nearly full, and kill its workers.
        os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112, Ray's own spelling
        parts = [replace(part, sections=tuple(s for s in part.sections if s in chosen)) for part in PARTS]
        run_parts([part for part in parts if part.sections], arguments, report, log)
    print((arguments.out / "check.md").read_text(), flush=True)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
