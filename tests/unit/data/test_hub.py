"""Hugging Face data sets from disk, in both forms."""

import datasets
import pytest

from lora_rl.config.data import HubData
from lora_rl.data.rows import Row, open_rows
from lora_rl.errors import ConfigError, DataError

RECORDS = [{"prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(5)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    data = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"train": data, "test": data.select([4])}).save_to_disk(folder)
    return folder


def test_a_saved_folder_is_read_by_split(saved):
    rows = open_rows(HubData(path=str(saved), split="test"), seed=0)
    assert len(rows) == 1
    assert rows[0] == Row(input="4 + 4?", label="8")


def test_a_folder_of_files_is_read(tmp_path, write_jsonl, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_jsonl(RECORDS)
    rows = open_rows(HubData(path=str(tmp_path)), seed=0)
    assert [rows[index].label for index in range(len(rows))] == ["0", "2", "4", "6", "8"]


def test_an_unknown_split_is_refused_with_those_there(saved):
    with pytest.raises(DataError, match="unknown split 'dev'; it has train, test"):
        open_rows(HubData(path=str(saved), split="dev"), seed=0)


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(DataError, match=r"data.path: '/nowhere/data' .* cannot be loaded"):
        open_rows(HubData(path="/nowhere/data"), seed=0)


def test_a_missing_column_is_refused(saved):
    with pytest.raises(ConfigError, match=r"data\.label_key: 'solution' is not a column of .* has answer, prompt"):
        open_rows(HubData(path=str(saved), label_key="solution"), seed=0)


@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_a_null_in_any_row_of_a_used_column_is_found_at_once(tmp_path, column):
    datasets.Dataset.from_list([*RECORDS, RECORDS[0] | {column: None}]).save_to_disk(tmp_path / "rows")
    config = HubData(path=str(tmp_path / "rows"))
    with pytest.raises(DataError, match=f"column '{column}' has 1 nulls; fill them or remove their rows"):
        open_rows(config, seed=0)
    if column == "answer":
        assert len(open_rows(config.model_copy(update={"label_key": None}), seed=0)) == 6
