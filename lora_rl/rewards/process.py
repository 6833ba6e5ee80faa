"""One grader process, seen from its parent."""

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lora_rl.data.types import Sample
from lora_rl.errors import RewardError

START_DEADLINE_S = 60.0
"""Importing the graders' libraries on a busy machine."""
RECEIVE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What the graders said of one sample."""

    scores: dict[str, float] = field(default_factory=dict)
    """By term, up to the first that failed."""
    error: str | None = None


class GraderProcess:
    """A process that grades batches in order and is killed when a sample takes too long.

    A plain child with a socket, not `multiprocessing`, which refuses to start from daemons and imports the parent's
    main module again.
    """

    def __init__(self, terms: bytes) -> None:
        """Starts the process and returns at once; `terms` is a pickled list of (key, grader name, params)."""
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lora_rl.rewards.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
        self._channel.setblocking(False)
        self._received = bytearray()
        self._terms: bytes | None = terms

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def grade(self, samples: Sequence[Sample], deadline_s: float) -> list[Grading]:
        """Gradings of the samples in order, up to one that took over `deadline_s` or ended the process: that one is the
        last, with an `error`, and the process is no more. Raises RewardError when the process cannot start.
        """
        await self._start()
        gradings: list[Grading] = []
        try:
            await self._send(pickle.dumps(list(samples)), deadline_s)
            while len(gradings) < len(samples):
                gradings.append(Grading(**await self._receive(deadline_s)))
        except TimeoutError:
            self.end()
            gradings.append(Grading(error=f"took over {deadline_s:g} s"))
        except (EOFError, OSError):
            gradings.append(Grading(error=f"the grader's process ended with {self.end()}"))
        return gradings

    def end(self) -> str:
        """Kills the process and what it started, and says how it ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._channel.close()
        code = self._process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    async def _start(self) -> None:
        if self._terms is None:
            return
        try:
            await self._send(self._terms, START_DEADLINE_S)
            reply = await self._receive(START_DEADLINE_S)
        except TimeoutError:
            self.end()
            raise RewardError(f"a grader process did not start within {START_DEADLINE_S:g} s") from None
        except (EOFError, OSError):
            raise RewardError(f"a grader process ended with {self.end()} while starting; see its output") from None
        if "fault" in reply:
            self.end()
            raise RewardError(f"a grader process cannot start: {reply['fault']}")
        self._terms = None

    async def _send(self, message: bytes, deadline_s: float) -> None:
        async with asyncio.timeout(deadline_s):
            await asyncio.get_running_loop().sock_sendall(self._channel, message)

    async def _receive(self, deadline_s: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, and EOFError when the process has ended.

        What is here at the deadline counts, also where this process was too busy to read it before.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + deadline_s
        while (end := self._received.find(b"\n")) < 0:
            arriving = asyncio.ensure_future(loop.sock_recv(self._channel, RECEIVE_BYTES))
            try:
                # not asyncio.timeout: it drops what arrives in the same turn of the loop
                await asyncio.wait([arriving], timeout=max(give_up - loop.time(), 0.0))
            finally:
                if not arriving.done():
                    arriving.cancel()
                    await asyncio.wait([arriving])
            if arriving.cancelled():
                raise TimeoutError
            if not (received := arriving.result()):
                raise EOFError
            self._received += received
        message = bytes(self._received[:end])
        del self._received[: end + 1]
        return json.loads(message)
