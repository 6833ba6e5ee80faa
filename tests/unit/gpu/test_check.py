"""The check's frame: what one section does costs the others nothing, and all that was found is written down."""

import argparse
import io
import json
from pathlib import Path

import pytest

from tests.gpu.check import Part, Report, run_part


@pytest.fixture
def run(tmp_path: Path):
    """Runs sections of `sections.py` in a process, and returns the report's rows."""
    report = Report(tmp_path)

    def run(*sections: str, deadline_s: float = 200.0) -> list[list[str]]:
        part = Part("tests.unit.gpu.sections", sections, deadline_s)
        run_part(part, argparse.Namespace(tiny=True, out=tmp_path), report, io.StringIO())
        return [finding.row() for finding in report.findings]

    return run


def test_a_section_that_raises_leaves_the_next_its_turn(run, tmp_path):
    rows = run("raises", "holds", "breaks")
    assert ["raises", "error", "ValueError: no reason", "none", "**NO**"] in rows
    assert ["holds", "a number", "1", "≤ 2", "yes"] in rows
    assert ["breaks", "not a number", "nan", "≥ 0", "**NO**"] in rows
    written = json.loads((tmp_path / "check.json").read_text())
    assert [finding["section"] for finding in written["findings"] if finding["name"] == "seconds"] == [
        "raises",
        "holds",
        "breaks",
    ]


def test_what_was_found_before_a_death_is_kept(run):
    rows = run("dies")
    assert rows == [
        ["dies", "last words", "so far so good", "", ""],
        ["dies", "process", "ended with 3", "ends with 0", "**NO**"],
    ]


def test_a_section_that_hangs_is_ended_at_its_deadline(run):
    assert run("hangs", deadline_s=5.0) == [["hangs", "process", "did not end within 5 s", "ends with 0", "**NO**"]]


def test_the_table_s_cells_hold_no_line_breaks_and_no_bars(run, tmp_path):
    run("holds")
    assert "| holds | a\\|text | of two lines |  |  |" in (tmp_path / "check.md").read_text()
