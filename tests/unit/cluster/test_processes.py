import os
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lora_rl.cluster.processes import Server, end, held_port, last_lines, require_free_port, spawn, wait_for_http
from lora_rl.errors import ClusterError, DeadlineExceeded
from tests.processes import free_ports, running, wait_until

PARENT = textwrap.dedent("""
    import subprocess, sys
    code = "import signal; {ignore}print('ready', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code])
    print(child.pid, flush=True)
    child.wait()
""")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LORA_RL_HOME", str(tmp_path))
    return tmp_path


def parent_and_child(*, stubborn: bool = False) -> tuple[Server, int]:
    """A server with a child; `stubborn` makes the child ignore SIGTERM."""
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    server = spawn("parent", [sys.executable, "-c", PARENT.format(ignore=ignore)], {})
    wait_until(lambda: len(last_lines(server).split()) == 2, "the number of the child, and its word")
    return server, next(int(line) for line in last_lines(server).splitlines() if line.isdigit())


@pytest.mark.parametrize("stubborn", [False, True])
def test_end_leaves_no_child(stubborn: bool) -> None:
    server, child = parent_and_child(stubborn=stubborn)
    assert end(server, grace_s=1)
    assert not server.alive
    assert not running(child)
    assert not end(server)


def test_end_finds_the_child_of_a_server_that_was_killed() -> None:
    server, child = parent_and_child()
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive, "death")
    assert running(child)
    # the test's own deadline comes first, should it wait for an orphan that ended and that nobody reaps
    assert end(server, grace_s=3600)
    assert not running(child)


def test_end_leaves_a_later_process_with_the_same_number_alone() -> None:
    server, child = parent_and_child()
    try:
        stale = replace(server, started=server.started + "0")
        assert not stale.alive
        assert not end(stale)
        assert server.alive
        assert running(child)
    finally:
        end(server, grace_s=0.1)


def test_a_server_is_known_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    server, child = parent_and_child()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 0.0)
    assert server.alive
    assert end(server)
    assert not running(child)


def test_end_leaves_everything_alone_that_runs_since_a_reboot() -> None:
    server, child = parent_and_child()
    try:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive, "death")
        assert not end(replace(server, started=f"another {server.started}"))
        assert running(child)
    finally:
        end(server)
    assert not running(child)


def test_server_that_dies_with_us_ends_when_we_are_killed() -> None:
    code = """
        import os, signal, sys
        from lora_rl.cluster.processes import spawn
        for dies in (True, False):
            server = spawn("child", [sys.executable, "-c", "import signal; signal.pause()"], {}, dies_with_us=dies)
            print(server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    dies, stays = (int(line) for line in done.stdout.split())
    try:
        wait_until(lambda: not running(dies), "death")
        assert running(stays)
    finally:
        os.kill(stays, signal.SIGKILL)


def test_environment_and_output_reach_the_server() -> None:
    server = spawn("says", [sys.executable, "-c", "import os; print(os.environ['WORD'])"], {"WORD": "hello"})
    wait_until(lambda: not server.alive, "end")
    assert last_lines(server) == "hello"


def test_taken_port_is_named_with_the_option() -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ClusterError, match=f"--ray-port: port {port} is taken .*choose another"):
            require_free_port(port, "--ray-port")
    require_free_port(port, "--ray-port")


def test_a_held_port_is_given_to_nobody_else_and_a_server_can_listen_there() -> None:
    with held_port() as held, socket.socket() as other:
        address = held.getsockname()
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.create_server(address), socket.create_connection(address, timeout=60):
            pass


def test_waiting_for_a_server_that_ends_tells_its_last_words() -> None:
    server = spawn("fails", [sys.executable, "-c", "raise SystemExit('no such table')"], {})
    with pytest.raises(ClusterError, match=r"(?s)fails ended while starting; see .*fails\.log.*no such table"):
        wait_for_http(server, f"http://127.0.0.1:{free_ports(1)[0]}/", deadline_s=120)


def test_waiting_for_a_server_that_never_answers_ends_with_the_deadline() -> None:
    server = spawn("silent", [sys.executable, "-c", "import signal; signal.pause()"], {})
    try:
        with pytest.raises(DeadlineExceeded, match=r"silent: .* did not answer within 0\.3 s"):
            wait_for_http(server, f"http://127.0.0.1:{free_ports(1)[0]}/", deadline_s=0.3)
    finally:
        end(server)
