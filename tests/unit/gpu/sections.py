"""Sections that end in every way there is."""

import os
import signal

from tests.gpu.findings import Findings
from tests.gpu.scale import Scale


def holds(found: Findings, scale: Scale) -> None:
    found.at_most("a number", 1.0, 2.0)
    found.note("a|text", "of two\nlines")


def breaks(found: Findings, scale: Scale) -> None:
    found.at_least("not a number", float("nan"), 0.0)


def raises(found: Findings, scale: Scale) -> None:
    raise ValueError("no reason")


def dies(found: Findings, scale: Scale) -> None:
    found.note("last words", "so far so good")
    os._exit(3)


def hangs(found: Findings, scale: Scale) -> None:
    signal.pause()
