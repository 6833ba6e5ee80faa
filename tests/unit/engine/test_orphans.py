import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

CHILD = """
import time
from lora_rl.engine.orphans import die_with_parent
die_with_parent()
print("child is up", flush=True)
time.sleep(600)
"""
PARENT = f"""
import multiprocessing, threading, time

def child():
    exec({CHILD!r})

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    print(process.pid, flush=True)
    process.join()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_dies_when_its_parent_is_killed(parent: subprocess.Popen[str]):
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "child is up\n"
    assert is_running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while is_running(child):
        assert time.monotonic() < deadline, "the child outlived its parent"


def test_a_process_that_multiprocessing_did_not_start_is_left_alone():
    code = "from lora_rl.engine.orphans import die_with_parent; die_with_parent(); print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "fine\n"
