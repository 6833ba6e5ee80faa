import pytest
import torch

from lora_rl.config import AlgorithmConfig
from lora_rl.config.algorithm import (
    CispoLoss,
    ClippedLoss,
    GrpoAdvantage,
    GspoLoss,
    KlConfig,
    RatioBand,
    ReinforceAdvantage,
    RlooAdvantage,
)
from lora_rl.data.types import FinishReason
from lora_rl.trainer.objective import TokenTerms, advantages, sample_weights, shaped_rewards, token_losses
from tests.builders import make_group, make_sample
from tests.tolerances import FORMULA


def _terms(**fields) -> TokenTerms:
    """Two samples of two and one tokens."""
    values = {
        "logp_N": torch.tensor([-1.0, -2.0, -0.5], requires_grad=True),
        "entropy_N": torch.tensor([2.0, 1.0, 3.0], requires_grad=True),
        "logp_rollout_N": torch.tensor([-1.1, -1.5, -0.5]),
        "logp_trainer_N": torch.tensor([-1.0, -2.0, -0.5]),
        "logp_ref_N": None,
        "advantage_N": torch.tensor([1.0, 1.0, -2.0]),
        "weight_N": torch.full((3,), 1 / 3),
        "sample_N": torch.tensor([0, 0, 1]),
    }
    return TokenTerms(**(values | fields))


def _micro_loss(terms: TokenTerms, algorithm: AlgorithmConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sums over the tokens."""
    loss_N, metrics = token_losses(terms, algorithm)
    return loss_N.sum(), {name: values_N.sum() for name, values_N in metrics.items()}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GrpoAdvantage(divide_by_std=False), [-0.5, 0.5, 0.0, 0.0]),
        (GrpoAdvantage(), [-(2**-0.5), 2**-0.5, 0.0, 0.0]),
        (RlooAdvantage(), [-1.0, 1.0, 0.0, 0.0]),
    ],
)
def test_groups_are_compared_within_a_prompt_in_any_order(config, expected):
    (a, b), (c, d) = make_group("0/0", [0.0, 1.0]), make_group("0/1", [3.0, 3.0])
    rewards_B = torch.tensor([0.0, 3.0, 1.0, 3.0])
    found = advantages(rewards_B, [a, c, b, d], AlgorithmConfig(advantage=config))
    assert found[[0, 2, 1, 3]].tolist() == pytest.approx(expected, abs=1e-5)


def test_reinforce_whitens_over_the_batch():
    samples = [*make_group("0/0", [0.0, 1.0]), *make_group("0/1", [3.0, 4.0])]
    found = advantages(torch.tensor([0.0, 1.0, 3.0, 4.0]), samples, AlgorithmConfig(advantage=ReinforceAdvantage()))
    assert found.mean().abs() < FORMULA
    assert found.std().item() == pytest.approx(1.0, abs=1e-5)
    baselined = AlgorithmConfig(advantage=ReinforceAdvantage(group_baseline=True))
    assert advantages(torch.tensor([0.0, 1.0, 3.0, 4.0]), samples, baselined)[[0, 2]].unique().numel() == 1


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", [0.25, 0.25]), ("sample_mean", [1 / 6, 0.5]), ("constant", [0.05, 0.05])],
)
def test_weights_follow_the_aggregation(aggregation, expected):
    samples = [make_sample(response_tokens=[1] * 3), make_sample(response_tokens=[1])]
    weights = sample_weights(samples, AlgorithmConfig(aggregation=aggregation), max_response_tokens=10)
    assert weights.tolist() == pytest.approx(expected)


def test_samples_cut_off_weigh_nothing_under_the_overlong_filter():
    cut = make_sample(response_tokens=[1] * 3, finish_reason=FinishReason.LENGTH)
    samples = [cut, make_sample(response_tokens=[1]), make_sample(response_tokens=[1])]
    weights = sample_weights(samples, AlgorithmConfig(overlong_filter=True), max_response_tokens=3)
    assert weights.tolist() == [0.0, 0.5, 0.5]
    assert sample_weights(samples, AlgorithmConfig(), max_response_tokens=3)[0] > 0


def test_clipped_loss_is_the_weighted_sum_of_token_losses():
    loss, sums = _micro_loss(_terms(), AlgorithmConfig(loss=ClippedLoss(eps_low=0.2, eps_high=0.28)))
    ratios = torch.tensor([0.1, -0.5, 0.0]).exp()
    expected = -(ratios[0] + ratios[1] - 2.0 * ratios[2]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=FORMULA)
    assert sums["loss/policy"].item() == pytest.approx(expected.item(), rel=FORMULA)
    assert sums["mismatch/logp_abs/mean"].item() == pytest.approx(0.6, rel=1e-5)


def test_an_absent_upper_bound_is_the_lower_one():
    terms = _terms(logp_N=torch.tensor([-0.8, -1.2, -0.5], requires_grad=True))
    absent, equal, wider = (
        _micro_loss(terms, AlgorithmConfig(loss=ClippedLoss(eps_high=high)))[0].item() for high in (None, 0.2, 0.5)
    )
    assert absent == equal != wider


@pytest.mark.parametrize("loss", [ClippedLoss(), GspoLoss(), CispoLoss()])
def test_each_loss_gives_a_gradient_against_the_negative_and_for_the_positive(loss):
    terms = _terms()
    _micro_loss(terms, AlgorithmConfig(loss=loss, old_logp="recompute", tis_clip=None))[0].backward()
    assert terms.logp_N.grad is not None
    assert (terms.logp_N.grad.sign() == torch.tensor([-1.0, -1.0, 1.0])).all()


def test_entropy_bonus_lowers_the_loss_and_carries_gradient():
    terms = _terms(advantage_N=torch.zeros(3))
    loss, sums = _micro_loss(terms, AlgorithmConfig(entropy_coefficient=0.1))
    assert loss.item() == pytest.approx(-0.1 * 2.0, rel=1e-5)
    assert sums["loss/entropy"].item() == pytest.approx(-0.2, rel=1e-5)
    loss.backward()
    assert terms.entropy_N.grad is not None


def test_kl_in_the_loss_adds_its_estimate():
    terms = _terms(advantage_N=torch.zeros(3), logp_ref_N=torch.tensor([-1.5, -2.0, -0.5]))
    algorithm = AlgorithmConfig(kl=KlConfig(coefficient=0.3, estimator="k2"))
    assert _micro_loss(terms, algorithm)[0].item() == pytest.approx(0.3 * 0.125 / 3, rel=1e-5)


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_distance_to_the_base_is_reported_wherever_it_is_penalised(where):
    terms = _terms(logp_ref_N=torch.tensor([-1.5, -2.0, -0.5]))
    _, sums = _micro_loss(terms, AlgorithmConfig(kl=KlConfig(coefficient=0.3, estimator="k2", where=where)))
    assert sums["policy/kl_reference/mean"].item() == pytest.approx(0.125)
    assert ("loss/kl" in sums) == (where == "loss")


def test_truncated_importance_sampling_acts_on_recomputed_log_probabilities_alone():
    terms = _terms(logp_trainer_N=torch.tensor([-0.1, -1.5, -0.5]), logp_N=torch.tensor([-0.1, -1.5, -0.5]))
    recompute = AlgorithmConfig(old_logp="recompute", tis_clip=2.0)
    # The first token's weight exp(1) is cut to 2.
    assert _micro_loss(terms, recompute)[0].item() == pytest.approx(-(2.0 + 1.0 - 2.0) / 3, rel=1e-5)
    assert _micro_loss(terms, AlgorithmConfig(old_logp="rollout"))[0].item() == pytest.approx(-(1.2 + 1.0 - 2.0) / 3)


@pytest.mark.parametrize("old_logp", ["rollout", "recompute"])
@pytest.mark.parametrize(
    ("field", "band", "kept"),
    [
        ("icepop", RatioBand(low=0.8, high=2.0), [True, False, True]),
        ("sequence_mask", RatioBand(low=0.8, high=2.0), [False, False, True]),
        ("sequence_mask", RatioBand(low=0.6, high=2.0), [True, True, True]),
        ("geometric_mask", RatioBand(low=0.9, high=2.0), [False, False, True]),
        ("geometric_mask", RatioBand(low=0.8, high=2.0), [True, True, True]),
    ],
)
def test_masked_tokens_have_no_policy_gradient_and_are_counted(field, band, kept, old_logp):
    # Trainer over engine: exp(0.1) and exp(-0.5) in the first sample, 1 in the second; the noise is dropout's.
    logp = torch.tensor([-1.3, -1.4, -0.9], requires_grad=True)
    plain, masked = (
        AlgorithmConfig(old_logp=old_logp, loss=CispoLoss(), entropy_coefficient=0.1, **fields)
        for fields in ({}, {field: band})
    )
    gradients = []
    for algorithm in (plain, masked):
        terms = _terms(logp_N=logp)
        loss, sums = _micro_loss(terms, algorithm)
        gradients.append(torch.autograd.grad(loss, (logp, terms.entropy_N)))
    assert gradients[0][0].abs().min() > 0
    assert torch.equal(gradients[1][0], gradients[0][0] * torch.tensor(kept))
    assert torch.equal(gradients[1][1], gradients[0][1])
    assert sums[f"mismatch/{field.removesuffix('_mask')}_masked"] == kept.count(False)


def test_kl_in_the_reward_is_taken_off_by_sample():
    algorithm = AlgorithmConfig(kl=KlConfig(coefficient=0.5, estimator="k1", where="reward"))
    logp, reference = (
        [torch.tensor([-1.0, -1.0]), torch.tensor([-1.0])],
        [torch.tensor([-2.0, -3.0]), torch.tensor([-1.0])],
    )
    assert shaped_rewards(torch.tensor([1.0, 1.0]), logp, reference, algorithm).tolist() == [-0.5, 1.0]
