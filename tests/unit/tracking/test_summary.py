"""An iteration in a line and on a page, and what a publish says in numbers."""

import math

from lora_rl.engine import PublishOutcome, PublishReply
from lora_rl.store import STEPS
from lora_rl.tracking import check_declared, iteration_line, iteration_markdown, mean_score, publish_metrics
from lora_rl.tracking.summary import STAGES
from tests.builders import make_adapter_ref

COMMIT = {
    "it": 7,
    "reward_mean": 0.5,
    "adapter": make_adapter_ref("default", 8).to_json(),
    "metrics": {"reward/total/mean": 0.5, "mismatch/logp_abs/mean": 0.0123},
    "steps": {step: {"seconds": 1.5, "executions": 1} for step in STEPS},
}


def _reply(seconds: float, error: float, outcome: PublishOutcome = PublishOutcome.LOADED) -> PublishReply:
    stages = {stage: number * seconds for number, stage in enumerate(STAGES, 1)}
    return PublishReply(
        outcome=outcome,
        version="default@8",
        digest="d" * 64,
        seconds=stages if outcome is PublishOutcome.LOADED else {},
        probe_error=error,
        probe_effect=10 * error,
    )


def test_the_line_has_reward_mismatch_and_each_steps_seconds_in_fixed_columns():
    line = iteration_line("night", COMMIT)
    later = iteration_line("night", COMMIT | {"it": 1234, "reward_mean": -0.25})
    assert line.startswith("night it    7  reward   0.500  |Δlogp| 0.0123")
    assert all(f"{step}    1.5s" in line for step in STEPS)
    assert len(line) == len(later)


def test_a_metric_that_was_not_reported_does_not_break_the_line():
    assert "|Δlogp| nan" in iteration_line("night", COMMIT | {"metrics": {}})


def test_the_page_names_adapter_steps_and_metrics():
    page = iteration_markdown("night", COMMIT)
    assert page.startswith("## night, iteration 7\n\nAdapter `default@8`, weights `")
    assert "| rollout | 1.50 | 1 |" in page
    assert r"| mismatch/logp\_abs/mean | 0.0123 |" in page


def test_a_metrics_name_cannot_break_the_pages_table():
    commit = COMMIT | {"metrics": {"reward/a|b\n| c/mean": 0.5}}
    assert r"| reward/a\|b \| c/mean | 0.5 |" in iteration_markdown("night", commit)


def test_the_mean_of_a_filtered_run_is_over_all_that_was_drawn():
    filtered = {"reward/total/mean": 0.5, "drawn/total/mean": 0.1, "reward/exact/mean": 0.4, "drawn/exact/mean": 0.2}
    assert (mean_score(filtered), mean_score(filtered, "exact")) == (0.1, 0.2)
    assert mean_score({"reward/total/mean": 0.5}) == 0.5
    assert mean_score({}) is None


def test_the_slowest_replica_and_the_largest_probe_error_count():
    metrics = publish_metrics([_reply(1.0, 0.01), _reply(2.0, 0.005)])
    check_declared(metrics)
    assert metrics == {
        "publish/transfer_s": 2.0,
        "publish/load_s": 4.0,
        "publish/first_token_s": 6.0,
        "publish/probe_s": 8.0,
        "publish/probe_error/max": 0.01,
        "publish/probe_effect/max": 0.1,
    }


def test_a_replica_that_had_the_adapter_does_not_count():
    had_it = _reply(math.nan, 0.0, PublishOutcome.ALREADY_LOADED)
    assert publish_metrics([had_it, _reply(1.0, 0.01)]) == publish_metrics([_reply(1.0, 0.01)])
    assert publish_metrics([had_it]) == publish_metrics([]) == {}
