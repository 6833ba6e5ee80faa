"""Prompts come in an order that follows from seed and position alone."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lora_rl.config.data import FileData, HubData, ReasoningGymData
from lora_rl.config.run import changes_of_result
from lora_rl.data.sources import check_data, open_source
from lora_rl.errors import DataError
from tests.builders import make_run_config

PROMPTS = [{"prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(10)]


def _ids(batch):
    return [prompt.id for prompt in batch.prompts]


@pytest.fixture
def source(write_jsonl, renderer):
    return open_source(FileData(uri=write_jsonl(PROMPTS)), renderer, seed=0)


def _take(source, position, count, max_prompt_tokens=1000):
    return source.take(position, count, max_prompt_tokens=max_prompt_tokens)


def test_taking_in_parts_equals_taking_at_once_also_by_a_source_opened_later(source, write_jsonl, renderer):
    whole = _take(source, 0, 25)
    later = open_source(FileData(uri=write_jsonl(PROMPTS)), renderer, seed=0)
    first = _take(source, 0, 7)
    second = _take(later, first.positions[-1], 18)
    assert first.prompts + second.prompts == whole.prompts
    assert first.positions + second.positions == whole.positions == list(range(1, 26))


def test_each_epoch_has_every_row_once_in_another_order(source):
    ids = _ids(_take(source, 0, 20))
    epochs = [[id.split("/")[1] for id in ids[start : start + 10]] for start in (0, 10)]
    assert [set(epoch) for epoch in epochs] == [{str(n) for n in range(10)}] * 2
    assert epochs[0] != epochs[1]
    assert {id.split("/")[0] for id in ids[:10]} == {"0"}
    assert len(set(ids)) == 20


def test_another_seed_gives_another_order(source, write_jsonl, renderer):
    other = open_source(FileData(uri=write_jsonl(PROMPTS)), renderer, seed=1)
    assert _ids(_take(other, 0, 10)) != _ids(_take(source, 0, 10))


def test_without_shuffle_rows_come_as_they_lie(write_jsonl, renderer):
    source = open_source(FileData(uri=write_jsonl(PROMPTS), shuffle=False), renderer, seed=0)
    assert _ids(_take(source, 8, 4)) == ["0/8", "0/9", "1/0", "1/1"]


def test_a_prompt_carries_its_row(source):
    prompt = next(prompt for prompt in _take(source, 0, 10).prompts if prompt.id == "0/7")
    assert prompt.label == "14"
    assert "7 + 7?" in prompt.text


def test_prompts_that_are_too_long_are_left_out_but_count_as_consumed(write_jsonl, renderer):
    rows = [{"prompt": "word " * (100 if n % 2 else 1), "answer": "a"} for n in range(10)]
    source = open_source(FileData(uri=write_jsonl(rows), shuffle=False), renderer, seed=0)
    first = _take(source, 0, 3, max_prompt_tokens=60)
    second = _take(source, first.positions[-1], 3, max_prompt_tokens=60)
    assert _ids(first) == ["0/0", "0/2", "0/4"]
    assert first.positions == [1, 3, 5]
    assert _ids(second) == ["0/6", "0/8", "1/0"]
    assert second.positions == [7, 9, 11]
    assert _take(source, 0, 15, max_prompt_tokens=60).positions[-1] == 29


def test_data_of_which_nothing_is_short_enough_is_refused(source):
    with pytest.raises(DataError, match=r"max_prompt_tokens: 5 leaves out all 10 prompts, the shortest has \d+ tokens"):
        _take(source, 3, 1, max_prompt_tokens=5)


def test_procedural_tasks_have_an_epoch_too(renderer):
    source = open_source(ReasoningGymData(task="chain_sum", size=3), renderer, seed=0)
    batch = _take(source, 2, 2)
    assert len(source) == 3
    assert _ids(batch) == ["0/2", "1/0"]
    assert batch.prompts[0].metadata["source_dataset"] == "chain_sum"


def test_checking_good_data_finds_nothing_and_bad_data_lists_each_fault(write_jsonl):
    uri = write_jsonl(PROMPTS)
    assert check_data(FileData(uri=uri), seed=0)[1] == []
    broken = FileData(uri=uri, input_key="a", label_key="b")
    data, faults = check_data(broken, seed=0)
    assert (data, len(faults)) == (broken, 2)
    _, (fault,) = check_data(FileData(uri="/nowhere.jsonl"), seed=0)
    assert fault.startswith("data.uri: '/nowhere.jsonl' cannot be read")


def changed_jsonl(folder):
    (folder / "rows.jsonl").write_text(json.dumps(PROMPTS[0]) + "\n")
    yield FileData(uri=str(folder / "rows.jsonl"))
    (folder / "rows.jsonl").write_text(json.dumps(PROMPTS[1]) + "\n")


def changed_parquet(folder):
    pq.write_table(pa.Table.from_pylist(PROMPTS), folder / "rows.parquet")
    yield FileData(uri=str(folder / "rows.parquet"))
    pq.write_table(pa.Table.from_pylist(PROMPTS[::-1]), folder / "rows.parquet")


def changed_hub_data(folder):
    datasets.Dataset.from_list(PROMPTS).save_to_disk(folder / "first")
    datasets.Dataset.from_list(PROMPTS[:-1]).save_to_disk(folder / "second")
    (folder / "saved").symlink_to(folder / "first")
    yield HubData(path=str(folder / "saved"))
    (folder / "saved").unlink()
    (folder / "saved").symlink_to(folder / "second")


@pytest.mark.parametrize("changed", [changed_jsonl, changed_parquet, changed_hub_data])
def test_rows_that_have_changed_are_refused_by_the_digest_of_those_before(tmp_path, changed):
    steps = changed(tmp_path)
    config = next(steps)
    before, faults = check_data(config, seed=0)
    assert faults == []
    assert check_data(before, seed=0) == (before, [])
    assert next(steps, None) is None
    now, _ = check_data(config, seed=0)
    assert now.digest != before.digest
    _, (fault,) = check_data(before, seed=0)
    assert fault.startswith(f"data.digest: the rows found have {str(now.digest)[:12]}, not {str(before.digest)[:12]}")


def test_tasks_that_the_package_makes_differently_are_refused():
    config = ReasoningGymData(task="chain_sum")
    before, _ = check_data(config, seed=0)
    assert check_data(before, seed=0) == (before, [])
    _, (fault,) = check_data(before, seed=1)
    assert fault.startswith("data.digest: ")


def test_the_same_rows_elsewhere_have_the_same_digest(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(PROMPTS[0]))
        datasets.Dataset.from_list(PROMPTS).save_to_disk(tmp_path / name)
    for place in ({"uri": str(tmp_path / "%s.jsonl")}, {"type": "hf", "path": str(tmp_path / "%s")}):
        places = [{key: value.replace("%s", name) for key, value in place.items()} for name in ("a", "b")]
        first, second = (make_run_config(data=data) for data in places)
        assert changes_of_result(first, second) != []
        first, second = (run.model_copy(update={"data": check_data(run.data, seed=0)[0]}) for run in (first, second))
        assert changes_of_result(first, second) == []
