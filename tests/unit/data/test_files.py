"""Files that cannot be read are refused with the reason."""

import fsspec
import pytest

from lora_rl.data.files import read_records
from lora_rl.errors import DataError


def test_any_fsspec_uri_is_read_and_blank_lines_are_skipped():
    with fsspec.open("memory://bucket/prompts.jsonl", "wb") as file:
        file.write(b'{"prompt": "a"}\n\n{"prompt": "b"}')  # type: ignore[union-attr]
    assert read_records("memory://bucket/prompts.jsonl").rows == [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/nowhere/prompts.jsonl", r"data.uri: '/nowhere/prompts.jsonl' cannot be read \(FileNotFoundError"),
        ("ftq://host/prompts.jsonl", r"cannot be read \(ValueError: Protocol not known: ftq\)"),
        ("prompts.csv", r"ends in neither \.jsonl nor \.parquet"),
    ],
)
def test_an_unreadable_uri_is_named(uri, message):
    with pytest.raises(DataError, match=message):
        read_records(uri)


@pytest.mark.parametrize(("line", "message"), [("{", "line 2 is not JSON"), ("[1]", "line 2 holds JSON list")])
def test_a_bad_line_is_named_by_number(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(DataError, match=message):
        read_records(str(path))


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "prompts.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="is not a whole Parquet file"):
        read_records(str(path))


@pytest.mark.integration
def test_prompts_are_read_from_an_object_store_and_a_missing_object_is_named(s3_store_uri):
    bucket = s3_store_uri.removeprefix("s3://").split("/")[0]
    with fsspec.open(f"s3://{bucket}/prompts.jsonl", "wb") as file:
        file.write(b'{"prompt": "a"}')  # type: ignore[union-attr]
    assert read_records(f"s3://{bucket}/prompts.jsonl").rows == [{"prompt": "a"}]
    with pytest.raises(DataError, match=r"others.jsonl' cannot be read \(FileNotFoundError"):
        read_records(f"s3://{bucket}/others.jsonl")
