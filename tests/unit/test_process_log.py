"""What a process and its children log on standard error, with that in a file as under Ray."""

import subprocess
import sys
from pathlib import Path

CHILD = """
import os, subprocess, sys
from lora_rl.process_log import LogSince, where_logged
print("ValueError: of an earlier start", file=sys.stderr, flush=True)
log = LogSince()
subprocess.run([sys.executable, "-c", '''{child}'''])
print(where_logged())
print(log.causes())
"""
VLLM = """
import sys
for line in (
    'Traceback (most recent call last):',
    '  File "x.py", line 1',
    'torch.OutOfMemoryError: CUDA out of memory',
    'The above exception was the direct cause of the following exception:',
    'Exception: WorkerProc initialization failed. See stack trace for root cause.',
):
    print('(EngineCore pid=7) ERROR 11-30 00:55:45 [core.py:1510]', line, file=sys.stderr)
print('torch.OutOfMemoryError: CUDA out of memory', file=sys.stderr)
print('RuntimeError: Engine core initialization failed. See root cause above.', file=sys.stderr)
"""
KILLED = "import sys; [print(f'line {n}', file=sys.stderr) for n in range(9)]"


def run(child: str, log: Path | int) -> list[str]:
    command = [sys.executable, "-c", CHILD.format(child=child.strip())]
    with log.open("wb") if isinstance(log, Path) else open("/dev/null", "wb") as file:
        stderr = file if isinstance(log, Path) else log
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_the_cause_in_a_child_is_told_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    assert run(VLLM, log) == [str(log), "torch.OutOfMemoryError: CUDA out of memory"]


def test_last_lines_are_told_where_nothing_was_raised(tmp_path: Path) -> None:
    assert run(KILLED, tmp_path / "worker.err")[1:] == [f"line {n}" for n in range(4, 9)]


def test_without_a_file_the_process_is_named() -> None:
    where, *causes = run(KILLED, subprocess.PIPE)
    assert where.startswith("standard error of process ")
    assert causes == [""]
