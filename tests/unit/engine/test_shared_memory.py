"""Memory shared with a child that is killed."""

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from lora_rl.engine.shared_memory import forget_names
from tests.processes import DEADLINE_S


def hold(name: str, to_parent: Connection) -> None:
    memory = SharedMemory(name)
    to_parent.send("open")
    to_parent.recv()
    to_parent.send(bytes(memory.buf[:4]))
    to_parent.recv()


def test_a_forgotten_segment_is_gone_and_still_shared():
    memory, other = SharedMemory(create=True, size=4), SharedMemory(create=True, size=4)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=hold, args=(memory.name, theirs))
    child.start()
    assert ours.poll(DEADLINE_S)
    assert ours.recv() == "open"
    forget_names()
    assert not Path("/dev/shm", memory.name).exists()
    assert Path("/dev/shm", other.name).exists()
    memory.buf[:4] = b"ours"
    ours.send("read")
    assert ours.poll(DEADLINE_S)
    assert ours.recv() == b"ours"
    child.kill()
    child.join()
    memory.close()
    other.close()
    other.unlink()
