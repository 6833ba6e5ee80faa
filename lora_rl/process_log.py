"""The log of this process and of those that it starts: the file that standard error goes to, as Ray has it."""

import os
import re
from pathlib import Path

LINES_SHOWN = 5
_PREFIX = re.compile(r"^(\(.*? pid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[.*?\] ?)?")
"""What vLLM puts before each line."""
_CAUSE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b(?!.*(root cause|stack trace))")


def log_file() -> Path | None:
    """The file; None where standard error is a terminal or a pipe."""
    path = Path(os.readlink("/proc/self/fd/2"))
    return path if path.is_file() else None


def where_logged() -> str:
    """The log, for an error's text."""
    return str(log_file() or f"standard error of process {os.getpid()}")


class LogSince:
    """What is logged from now on."""

    def __init__(self) -> None:
        self._path = log_file()
        self._from = self._path.stat().st_size if self._path else 0

    def causes(self) -> str:
        """The errors of the tracebacks in it, first cause first, or where there are none its last lines."""
        if self._path is None:
            return ""
        with self._path.open(errors="replace") as file:
            file.seek(self._from)
            lines = [_PREFIX.sub("", line.rstrip()) for line in file]
        errors = list(dict.fromkeys(line for line in lines if _CAUSE.match(line)))
        return "\n".join(errors[:LINES_SHOWN] or lines[-LINES_SHOWN:])
