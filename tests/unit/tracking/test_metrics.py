"""Each metric is declared once, is written somewhere, and stands in the documentation."""

import re
from pathlib import Path

import pytest

from lora_rl.tracking.metrics import METRICS, Metric, Reduction, check_declared, metrics_page
from lora_rl.tracking.summary import STAGES

ROOT = Path(__file__).parents[3]
AREAS = sorted({metric.name.split("/")[0] for metric in METRICS})
WRITTEN = re.compile(rf'"((?:{"|".join(AREAS)})/[\w/{{}}.]+)"')


def _names_in_the_source() -> set[str]:
    """Metric names in the code; parts filled in at run time become `x`."""
    files = [path for part in ("lora_rl", "tasks", "flows") for path in (ROOT / part).rglob("*.py")]
    texts = [path.read_text() for path in files if path != ROOT / "lora_rl" / "tracking" / "metrics.py"]
    return {re.sub(r"\{.*?\}", "x", name) for text in texts for name in WRITTEN.findall(text)}


def _is_declared(name: str) -> bool:
    try:
        check_declared([name])
    except KeyError:
        return False
    return True


def test_every_name_that_the_code_writes_is_declared():
    stages = {f"publish/{stage}_s" for stage in STAGES}
    names = (_names_in_the_source() - {"publish/x_s"}) | stages
    assert len(names) > 30
    assert [name for name in sorted(names) if not _is_declared(name)] == []


def test_every_declared_metric_is_written_somewhere():
    written = _names_in_the_source()
    unwritten = [metric.name for metric in METRICS if not any(metric.matches(name) for name in written)]
    assert unwritten == [f"publish/{stage}_s" for stage in STAGES]


def test_an_undeclared_name_fails_and_all_of_them_are_listed():
    check_declared(["reward/total/mean", "reward/exact/mean", "time/rollout_s"])
    with pytest.raises(KeyError, match=r"not declared in lora_rl/tracking/metrics.py: a/b, reward/exact/median"):
        check_declared(["reward/total/mean", "reward/exact/median", "a/b"])


def test_a_placeholder_stands_for_one_part():
    metric = Metric("reward/<term>/mean", "", Reduction.MEAN, "")
    assert metric.matches("reward/my.graders:length_2/mean")
    assert not metric.matches("reward/mean")
    assert not metric.matches("reward/a/b/mean")


def test_no_name_is_declared_twice():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


def test_the_end_of_a_name_agrees_with_unit_and_reduction():
    for metric in METRICS:
        last = metric.name.split("/")[-1]
        if last in set(Reduction):
            assert metric.reduction == last, metric.name
        assert (metric.unit == "tokens/s") == last.endswith("_per_s"), metric.name
        assert (metric.unit == "s") == (last.endswith("_s") and not last.endswith("_per_s")), metric.name
        assert (metric.unit == "GiB") == last.endswith("_gib"), metric.name


def test_the_page_in_the_documentation_is_current():
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "run `make docs`"


def test_each_row_of_the_page_has_four_cells():
    rows = [line for line in metrics_page().splitlines() if line.startswith("|")]
    assert len(rows) == len(METRICS) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
