"""A built directory is whole or absent."""

from pathlib import Path

import pytest

from lora_rl.models.build import build_directory


def test_a_builder_that_raises_leaves_nothing(tmp_path):
    def fail_half_way(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_directory(tmp_path / "model", fail_half_way)
    assert list(tmp_path.iterdir()) == []


def test_the_loser_of_a_race_leaves_the_winners_directory(tmp_path):
    target = tmp_path / "model"

    def win(directory: Path) -> None:
        (directory / "who").write_text("first")

    def lose(directory: Path) -> None:
        build_directory(target, win)
        (directory / "who").write_text("second")

    build_directory(target, lose)
    assert (target / "who").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


def test_an_existing_directory_is_not_touched(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="already there"):
        build_directory(tmp_path / "model", lambda directory: None)
