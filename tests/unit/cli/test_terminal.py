"""What models, data and errors say is shown letter by letter."""

from dataclasses import replace
from pathlib import Path

import pytest

from lora_rl.cli import report
from lora_rl.cli.report import print_report
from lora_rl.cli.terminal import printable, terminal
from lora_rl.config import StoreConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.errors import EngineError
from lora_rl.store import RunRecords, open_store
from tests.builders import make_sample

MARKUP = ["[/answer] 2", "[red]2", "2 :warning:", "[link=http://host]2[/link]", r"\[2]"]


@pytest.mark.parametrize("text", MARKUP)
def test_answers_prompts_and_references_are_shown_as_they_are(folder: Path, capsys, text: str) -> None:
    artifacts = open_store(StoreConfig(uri=str(folder)))
    records = RunRecords(artifacts, "run")
    sample = replace(make_sample(), prompt_text=f"prompt {text}", response_text=f"answer {text}", label=f"label {text}")
    samples = artifacts.put_blob("samples", write_samples([sample])).to_json()
    records.commit_iteration(0, {"it": 0, "reward_mean": 0.5, "metrics": {}, "samples": samples})
    print_report(terminal(), artifacts, records, "run", 1)
    shown = capsys.readouterr().out
    assert [shown.count(f"{what} {text}") for what in ("prompt", "answer", "label")] == [2, 2, 2]


@pytest.mark.parametrize("text", MARKUP)
def test_errors_are_shown_as_they_are(cli, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fail(*_: object) -> None:
        raise EngineError(f"grader said {text}")

    monkeypatch.setattr("lora_rl.cli.models.resolve_model", fail)
    assert f"error: grader said {text}" in cli("models", "get", "x").text


def test_characters_that_steer_the_terminal_do_not_reach_it() -> None:
    assert printable("a\x1b[31mb\r\x07\x9b2J\u202ec") == "a�[31mb���2J�c"
    assert printable("two\nlines, Ä € 漢") == "two\nlines, Ä € 漢"


def test_every_command_prints_on_this_kind_of_console() -> None:
    sources = {path: path.read_text() for path in Path(report.__file__).parent.glob("*.py")}
    made_in = {path.name for path, source in sources.items() if "Console(" in source or "from_markup" in source}
    assert made_in == {"terminal.py"}
