import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.processes import running, wait_until

CHILD = """
import os, signal
from lora_rl.engine.orphans import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = f"""
import multiprocessing

def child():
    exec({CHILD!r})

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def test_a_child_dies_when_its_parent_is_killed(parent: subprocess.Popen[str]):
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not running(child), "death of the child whose parent was killed")


def test_a_process_that_multiprocessing_did_not_start_is_left_alone():
    code = "from lora_rl.engine.orphans import die_with_parent; die_with_parent(); print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "fine\n"
