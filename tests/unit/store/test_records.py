import json
import math
from pathlib import Path

import pytest

from lora_rl.config import StoreConfig
from lora_rl.store import StepRecord, canonical_json, fingerprint, open_store
from tests.builders import make_step_record

PARTS = {"step": "rollout", "inputs": {"adapter": "a"}, "config": {"temperature": 1.0}, "seed": 7}


def test_fingerprint_is_the_same_for_the_same_parts_in_any_order():
    swapped = {"config": {"b": 2, "a": 1}, "inputs": {"y": "2", "x": "1"}}
    ordered = {"config": {"a": 1, "b": 2}, "inputs": {"x": "1", "y": "2"}}
    assert fingerprint("rollout", seed=0, **swapped) == fingerprint("rollout", seed=0, **ordered)


@pytest.mark.parametrize(
    "other", [{"step": "reward"}, {"inputs": {"adapter": "b"}}, {"config": {"temperature": 0.9}}, {"seed": 8}]
)
def test_fingerprint_differs_when_any_part_does(other: dict):
    assert fingerprint(**PARTS) != fingerprint(**{**PARTS, **other})


def test_record_comes_back_from_json(tmp_path: Path):
    record = make_step_record(open_store(StoreConfig(uri=str(tmp_path))))
    assert StepRecord.from_json(json.loads(canonical_json(record.to_json()))) == record


def test_metrics_that_are_not_finite_come_back_from_strict_json(tmp_path: Path):
    record = make_step_record(
        open_store(StoreConfig(uri=str(tmp_path))), metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}
    )
    metrics = StepRecord.from_json(json.loads(canonical_json(record.to_json()))).metrics
    assert math.isnan(metrics.pop("a"))
    assert metrics == {"b": math.inf, "c": -math.inf, "d": 1.0}
