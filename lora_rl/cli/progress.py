"""Live progress of a run in the terminal, read from its records: the same whoever executes it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lora_rl.errors import StoreError
from lora_rl.store import RunRecords
from lora_rl.tracking import iteration_line, iteration_under_way

POLL_S = 1.0


@contextmanager
def show_progress(console: Console, run: str, records: RunRecords, iterations: int) -> Iterator[None]:
    """Prints a line for each iteration that gets committed, and beneath them the step under way."""
    display = _Display(console, run, records, iterations)
    thread = threading.Thread(target=display.run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        display.stopped.set()
        thread.join()


class _Display:
    def __init__(self, console: Console, run: str, records: RunRecords, iterations: int) -> None:
        self.stopped = threading.Event()
        self._console = console
        self._run = run
        self._records = records
        self._iterations = iterations
        self._next = records.first_uncommitted()
        self._since = time.monotonic()
        self._step = ""

    def run(self) -> None:
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while not self.stopped.wait(POLL_S):
                with suppress(StoreError):  # the run itself decides whether that is fatal
                    self._print_commits()
                    live.update(self._line())
            with suppress(StoreError):
                self._print_commits()

    def _print_commits(self) -> None:
        while self._next < self._iterations and (commit := self._records.iteration_commit(self._next)):
            self._console.print(iteration_line(self._run, commit), soft_wrap=True)
            self._next += 1

    def _line(self) -> Text:
        if self._next >= self._iterations:
            return Text("finishing")
        state = iteration_under_way(self._records, self._next)
        step, done = _step_under_way(state)
        if step != self._step:
            self._step, self._since = step, time.monotonic()
        return Text(
            f"it {self._next}/{self._iterations}  {step} {time.monotonic() - self._since:.0f}s  {done}", style="cyan"
        )


def _step_under_way(state: dict[str, Any]) -> tuple[str, str]:
    begun = [name for name, step in state["steps"].items() if step["state"] == "begun"]
    done = "  ".join(
        f"{name} {step['seconds']:.1f}s" for name, step in state["steps"].items() if step["state"] == "committed"
    )
    return (begun[0] if begun else "starting"), done
