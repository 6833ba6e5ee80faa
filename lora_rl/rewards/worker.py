"""A grader process: reads pickled batches of samples, writes one line of JSON for each sample.

Started by `process.GraderProcess` as `python -m lora_rl.rewards.worker <socket> <parent's pid>`. Graders run in the
main thread, so that they may use signals.
"""

import asyncio
import inspect
import json
import math
import numbers
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

from lora_rl.data.types import Sample
from lora_rl.errors import ConfigError, RewardError
from lora_rl.parent_death import kill_me_with_parent
from lora_rl.rewards.resolve import checked_params, resolve_grader

MAX_ERROR_CHARS = 500
"""An error may quote a whole answer; this much of it is kept."""

Graders = dict[str, Callable[[Sample], Any]]
"""Key of each term to its grader with the params bound."""


def main() -> None:
    """Grades until the parent closes the socket or dies."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    kill_me_with_parent()
    if os.getppid() != parent:
        return  # It died before the line above.
    channel = socket.socket(fileno=descriptor)
    with channel, channel.makefile("rb") as batches, channel.makefile("wb") as lines:
        try:
            graders = {key: _bound(name, params) for key, name, params in pickle.load(batches)}
        except ConfigError as error:
            _write(lines, {"fault": str(error)})
            return
        _write(lines, {"ready": True})
        with asyncio.Runner() as runner:
            for batch in _batches(batches):
                for sample in batch:
                    _write(lines, grade(sample, graders, runner))


def grade(sample: Sample, graders: Graders, runner: asyncio.Runner) -> dict[str, Any]:
    """`scores` by term up to the first grader that failed, and that one's `error` or None."""
    scores: dict[str, float] = {}
    for key, grader in graders.items():
        try:
            score = grader(sample)
            if inspect.iscoroutine(score):
                score = runner.run(score)
            scores[key] = _finite(score)
        except (Exception, SystemExit) as error:
            return {"scores": scores, "error": _printable(f"{key}: {type(error).__name__}: {error}")}
    return {"scores": scores, "error": None}


def _bound(name: str, params: dict[str, Any]) -> Callable[[Sample], Any]:
    grader = resolve_grader(name)
    arguments = checked_params(grader, params)
    return lambda sample: grader(sample, **arguments)


def _printable(text: str) -> str:
    return text[:MAX_ERROR_CHARS].encode(errors="replace").decode()


def _finite(score: Any) -> float:
    if not isinstance(score, numbers.Real) or not math.isfinite(score):
        raise RewardError(f"score {score!r} is not a finite number")
    return float(score)


def _batches(stream: IO[bytes]) -> Iterable[list[Sample]]:
    while True:
        try:
            yield pickle.load(stream)
        except EOFError:
            return


def _write(lines: IO[bytes], message: dict[str, Any]) -> None:
    lines.write(json.dumps(message).encode() + b"\n")
    lines.flush()


if __name__ == "__main__":
    main()
