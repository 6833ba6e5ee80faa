import pytest

from lora_rl.data.types import FinishReason
from lora_rl.rewards.metrics import reward_metrics
from tests.builders import make_group, make_sample


def test_totals_are_over_all_graded_samples() -> None:
    metrics = reward_metrics([*make_group("0/0", [1.0, 0.0]), *make_group("0/1", [1.0, 1.0, None])])
    assert metrics["reward/total/mean"] == 0.75
    assert metrics["reward/total/std"] == pytest.approx((3 / 16) ** 0.5)
    assert (metrics["reward/total/min"], metrics["reward/total/max"]) == (0.0, 1.0)


def test_share_of_groups_without_a_difference() -> None:
    samples = [*make_group("0/0", [1.0, 0.0]), *make_group("0/1", [0.3, 0.3, None]), *make_group("0/2", [0.0, 0.0])]
    assert reward_metrics(samples)["reward/uniform_groups"] == pytest.approx(2 / 3)


def test_terms_are_averaged_over_the_samples_that_they_scored_and_errors_are_counted() -> None:
    metrics = reward_metrics(
        [
            make_sample(reward=1.0, reward_details={"exact": 1.0, "format": 1.0}),
            make_sample(reward=0.0, reward_details={"exact": 0.0, "error": "format: ValueError: no"}),
            make_sample(reward=None, reward_details={"error": "took over 10 s"}),
        ]
    )
    assert metrics["reward/exact/mean"] == 0.5
    assert metrics["reward/format/mean"] == 1.0
    assert metrics["reward/errors"] == 2.0
    assert "reward/error/mean" not in metrics


def test_lengths_and_cut_off_answers_are_over_all_samples() -> None:
    samples = [
        make_sample(reward=1.0, response_tokens=[1, 2, 3, 4]),
        make_sample(reward=None, response_tokens=[1, 2], finish_reason=FinishReason.LENGTH),
    ]
    metrics = reward_metrics(samples)
    assert metrics["response/tokens/mean"] == 3.0
    assert metrics["response/cut_off"] == 0.5


def test_batch_where_every_grader_failed_has_no_totals() -> None:
    metrics = reward_metrics(make_group("0/0", [None, None], reward_details={"error": "took over 10 s"}))
    assert metrics["reward/errors"] == 2.0
    assert "reward/total/mean" not in metrics


def test_empty_batch_has_only_counts() -> None:
    assert reward_metrics([]) == {"reward/errors": 0.0}
