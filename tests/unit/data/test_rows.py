"""Rows of tables: what is there is read, what is wrong is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lora_rl.config.data import FileData
from lora_rl.data.rows import Row, open_rows
from lora_rl.errors import ConfigError, DataError

GOOD = {"prompt": "2 + 2?", "answer": "4", "extra": {"level": 1}}


def test_a_jsonl_row_has_input_label_and_metadata(write_jsonl):
    rows = open_rows(FileData(uri=write_jsonl([GOOD]), metadata_key="extra"), seed=0)
    assert len(rows) == 1
    assert rows[0] == Row(input="2 + 2?", label="4", metadata={"level": 1})


def test_messages_and_numbers_are_taken_and_unused_columns_are_not(write_jsonl):
    messages = [{"role": "user", "content": "2 + 2?"}]
    rows = open_rows(FileData(uri=write_jsonl([{"prompt": messages, "answer": 4, "extra": 1}])), seed=0)
    assert rows[0] == Row(input=messages, label="4")


def test_without_label_key_there_is_no_label(write_jsonl):
    assert open_rows(FileData(uri=write_jsonl([{"prompt": "hi"}]), label_key=None), seed=0)[0].label is None


def test_parquet_gives_the_same_rows_as_jsonl(write_jsonl, tmp_path):
    pq.write_table(pa.Table.from_pylist([GOOD]), tmp_path / "prompts.parquet")
    parquet = open_rows(FileData(uri=(tmp_path / "prompts.parquet").as_uri(), metadata_key="extra"), seed=0)
    jsonl = open_rows(FileData(uri=write_jsonl([GOOD]), metadata_key="extra"), seed=0)
    assert parquet[0] == jsonl[0]


def test_metadata_may_be_json_text(write_jsonl):
    rows = open_rows(FileData(uri=write_jsonl([GOOD | {"extra": '{"level": 1}'}]), metadata_key="extra"), seed=0)
    assert rows[0].metadata == {"level": 1}


def test_missing_columns_are_all_named_with_those_there(write_jsonl):
    config = FileData(uri=write_jsonl([GOOD]), input_key="question", metadata_key="meta")
    with pytest.raises(ConfigError) as caught:
        open_rows(config, seed=0)
    first, second = str(caught.value).splitlines()
    assert first.startswith("data.input_key: 'question' is not a column of")
    assert first.endswith("which has answer, extra, prompt; name one of these")
    assert second.startswith("data.metadata_key: 'meta' is not a column of")
    assert second.endswith("name one of these or set null")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "hi"}, "row 1: column 'answer' is missing or null; fill it or remove the row"),
        (GOOD | {"prompt": 3}, "row 1: column 'prompt' holds int; use a text or a list of chat messages"),
        (GOOD | {"prompt": []}, "row 1: column 'prompt' holds an empty list"),
        (GOOD | {"prompt": [{"role": "god", "content": "hi"}]}, "row 1: .* give role .system, user, assistant, tool."),
        (GOOD | {"prompt": [{"role": "user"}]}, "row 1: .* content"),
        (GOOD | {"prompt": [{"role": "assistant", "content": "hi"}]}, "ends with an assistant message"),
        (GOOD | {"answer": ["4"]}, "row 1: column 'answer' holds list; use a text or a number"),
        (GOOD | {"answer": True}, "row 1: column 'answer' holds bool"),
        (GOOD | {"extra": "level 1"}, "row 1: column 'extra' is not JSON"),
        (GOOD | {"extra": 7}, "row 1: column 'extra' holds int; use a JSON object"),
    ],
)
def test_a_bad_row_is_found_when_the_file_is_opened(write_jsonl, row, message):
    with pytest.raises(DataError, match=message):
        open_rows(FileData(uri=write_jsonl([GOOD, row]), metadata_key="extra"), seed=0)


def test_no_rows_is_an_error(write_jsonl):
    with pytest.raises(DataError, match="is empty; give data with at least one row"):
        open_rows(FileData(uri=write_jsonl([])), seed=0)
