"""What is written is what is read, to the bit; what is damaged is refused by name."""

import io
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lora_rl.data.samples_io import SCHEMA, read_samples, write_samples
from lora_rl.data.types import FinishReason
from lora_rl.errors import DataError
from tests.builders import make_group, make_sample


def _graded_samples():
    rng = random.Random(0)
    return [
        make_sample(
            id=f"0/1/{index}",
            prompt_text="é漢\x00\n🙂",
            response_tokens=list(range(index)),
            logp_rollout=[-rng.random() * 10 for _ in range(index)],
            finish_reason=list(FinishReason)[index % 3],
            label=None if index % 2 else "-0.1",
            metadata={"difficulty": {"terms": [2, 3.5, True, None]}, "名": ("x", {0: (1,)})},
            reward=[None, 0.1 + 0.2, -1.0][index % 3],
            reward_details={"exact": 1 / 3, "error": "grader raised"},
        )
        for index in range(7)
    ]


def test_samples_round_trip_exactly():
    samples = _graded_samples()
    assert read_samples(write_samples(samples)) == samples


def test_no_samples_round_trip_too():
    assert read_samples(write_samples([])) == []


def test_log_probabilities_that_are_not_finite_survive():
    (sample,) = read_samples(write_samples([make_sample(logp_rollout=[-math.inf, math.nan])]))
    assert sample.logp_rollout[0] == -math.inf
    assert math.isnan(sample.logp_rollout[1])


def test_same_samples_give_the_same_bytes_whatever_the_order_of_metadata_keys():
    first = write_samples(make_group("0/0", [0.0, 1.0], metadata={"a": 1, "b": 2}))
    second = write_samples(make_group("0/0", [0.0, 1.0], metadata={"b": 2, "a": 1}))
    assert first == second


def test_another_reward_gives_other_bytes():
    assert write_samples(make_group("0/0", [0.0, 1.0])) != write_samples(make_group("0/0", [1.0, 0.0]))


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_cut_file_is_refused(part):
    data = write_samples(_graded_samples())
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read_samples(data[: int(len(data) * part)])


def _changed(change) -> bytes:
    table = pq.read_table(io.BytesIO(write_samples(_graded_samples())))
    sink = io.BytesIO()
    pq.write_table(change(table), sink)
    return sink.getvalue()


def _replaced(name: str, column: pa.Array):
    return lambda table: table.set_column(SCHEMA.names.index(name), name, column)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["logp_rollout"]), "column logp_rollout is missing"),
        (_replaced("reward", pa.array(["high"] * 7)), "column reward holds string, not double"),
        (_replaced("response_text", pa.array(["", None] * 3 + [""])), "column response_text has 3 empty cells"),
        (_replaced("metadata", pa.array(["{"] * 7)), "0/1/0: column metadata is not JSON"),
        (_replaced("metadata", pa.array(["[]"] * 7)), "column metadata holds JSON list, not an object"),
        (
            _replaced("finish_reason", pa.array(["tired"] * 7)),
            "finish_reason holds 'tired', not one of stop, length",
        ),
        (_replaced("logp_rollout", pa.array([[-1.0]] * 7)), "0/1/0: logp_rollout has 1 values for 0 response_tokens"),
    ],
)
def test_a_damaged_column_is_refused_by_name(change, message):
    with pytest.raises(DataError, match=message):
        read_samples(_changed(change))


def test_lists_of_unequal_length_are_not_written():
    with pytest.raises(DataError, match="logp_rollout has 1 values for 2 response_tokens"):
        write_samples([make_sample(logp_rollout=[-0.1])])


@pytest.mark.parametrize("metadata", [{"a": {1, 2}}, {"a": math.nan}])
def test_metadata_without_a_json_form_is_not_written(metadata):
    with pytest.raises(DataError, match="0/0/0: metadata"):
        write_samples([make_sample(metadata=metadata)])
