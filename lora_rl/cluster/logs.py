"""Logs of actors, kept in memory until a task fetches them: Ray does not bring them to Prefect by itself."""

import logging
from collections import deque
from contextlib import nullcontext


class LogRing(logging.Handler):
    """The last `capacity` records of a process, numbered."""

    def __init__(self, capacity: int = 1000) -> None:
        super().__init__()
        self._lines: deque[tuple[int, int, str]] = deque(maxlen=capacity)
        self._count = 0
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._count += 1
        self._lines.append((self._count, record.levelno, self.format(record)))

    def after(self, number: int) -> list[tuple[int, int, str]]:
        """Lines above `number`, oldest first, as (number, level, text)."""
        with self.lock or nullcontext():
            return [line for line in self._lines if line[0] > number]


class LogDraining:
    """Base of a hosted actor: keeps what its process logs under `lora_rl`, for `drain_logs`."""

    def __init__(self) -> None:
        self._ring = LogRing()
        logger = logging.getLogger("lora_rl")
        logger.setLevel(logging.INFO)
        logger.addHandler(self._ring)
