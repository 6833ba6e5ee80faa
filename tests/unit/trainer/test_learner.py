import gc
from dataclasses import replace

import pytest
import torch

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, TrainerConfig
from lora_rl.config.algorithm import CispoLoss, GspoLoss, KlConfig
from lora_rl.data.types import FinishReason
from lora_rl.models.tiny import TinyShape, make_tiny_qwen3
from lora_rl.trainer.adapter import Clock, lora_of
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.model import build_model
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.slot_lora import GradientStacks
from lora_rl.trainer.slot_optimizer import SlotOptimizer
from lora_rl.trainer.state_io import MOMENTS
from tests.builders import make_training_samples
from tests.oracle import grpo_loss, lora_parameters, peft_from_weights
from tests.tolerances import EXACT, PARITY
from tests.unit.trainer.forward import all_linear, random_weights

LEARNING_RATES = {0: 1e-2, 1: 3e-3, 2: 2e-2}


def _job(slot: int, *, seed: int = 0, algorithm: AlgorithmConfig = AlgorithmConfig(), **fields) -> Job:
    samples = make_training_samples(seed=seed)
    return Job(slot=slot, samples=samples, algorithm=algorithm, sampling=SamplingConfig(), **fields)


def _gradients(bank: SlotBank, learner: Learner, job: Job, **lora_options) -> dict[str, torch.Tensor]:
    lora = all_linear(bank, **lora_options)
    parameters = bank.fill(job.slot, lora, random_weights(bank, lora))
    learner.forward_backward([job])
    return {parameter.name: parameter.value.grad for parameter in parameters}


def _largest_gap(ours, theirs) -> float:
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.mark.parametrize(("temperature", "rank"), [(1.0, 4), (0.7, 4), (1.0, 1), (1.0, 3), (1.0, 7)])
def test_gradients_and_loss_are_those_of_transformers_and_peft(bank, make_learner, tiny_qwen3, temperature, rank):
    job = replace(_job(0), sampling=SamplingConfig(temperature=temperature))
    lora = all_linear(bank, rank=rank, alpha=2.0 * rank)
    weights = random_weights(bank, lora)
    parameters = bank.fill(0, lora, weights)
    metrics = make_learner().forward_backward([job])[0]
    reference = peft_from_weights(tiny_qwen3, weights, rank=lora.rank, alpha=lora.rank * lora.scaling)
    loss = grpo_loss(reference, job.samples, temperature=temperature)
    loss.backward()
    assert abs(metrics["loss/total"] - loss.item()) < PARITY
    theirs = {name: parameter.grad for name, parameter in lora_parameters(reference).items()}
    ours = {parameter.name: parameter.value.grad for parameter in parameters}
    assert max(gradient.abs().max().item() for gradient in theirs.values()) > 0.01
    assert _largest_gap(ours, theirs) < PARITY


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "constant"])
@pytest.mark.parametrize("loss", [None, GspoLoss(), CispoLoss()], ids=["clipped", "gspo", "cispo"])
def test_a_split_into_micro_batches_changes_nothing(bank, make_learner, aggregation, loss):
    algorithm = AlgorithmConfig(
        aggregation=aggregation,
        kl=KlConfig(coefficient=0.1),
        entropy_coefficient=0.01,
        **({} if loss is None else {"loss": loss}),
    )
    whole, split = (_gradients(bank, make_learner(budget), _job(0, algorithm=algorithm)) for budget in (4096, 30))
    assert _largest_gap(whole, split) < PARITY


def test_metrics_are_those_of_the_whole_batch_for_any_split(bank, make_learner):
    lora = all_linear(bank)
    bank.fill(0, lora, random_weights(bank, lora))
    whole, split = (make_learner(budget).forward_backward([_job(0)])[0] for budget in (4096, 30))
    for name in whole.keys() - {"train/packed_rows"}:
        assert whole[name] == pytest.approx(split[name], abs=1e-5), name


def _train(bank: SlotBank, learner: Learner, slots: list[int], steps: int = 5) -> dict[int, dict[str, torch.Tensor]]:
    """Weights of each slot after some steps in which all of them train in one packed batch."""
    optimizers = {slot: _fresh_optimizer(bank, slot) for slot in slots}
    for _ in range(steps):
        learner.forward_backward([_job(slot, seed=slot) for slot in slots])
        for slot, optimizer in optimizers.items():
            assert optimizer.step(12).stepped
            bank.refresh(slot)
    return {slot: _weights(optimizer) for slot, optimizer in optimizers.items()}


def _fresh_optimizer(bank: SlotBank, slot: int) -> SlotOptimizer:
    lora = all_linear(bank)
    weights = random_weights(bank, lora, seed=slot)
    moments = {moment: {name: torch.zeros_like(weight) for name, weight in weights.items()} for moment in MOMENTS}
    config = OptimizerConfig(lr=LEARNING_RATES[slot], weight_decay=0.01)
    return SlotOptimizer(bank.fill(slot, lora, weights), config, Clock(), moments, bank._model.groups)


def _weights(optimizer: SlotOptimizer) -> dict[str, torch.Tensor]:
    return {parameter.name: parameter.value.detach().clone() for parameter in optimizer.parameters}


def test_adapters_trained_together_are_those_trained_alone(bank, make_learner):
    joint = _train(bank, make_learner(), [0, 1, 2])
    for slot in (0, 1, 2):
        assert _largest_gap(joint[slot], _train(bank, make_learner(), [slot])[slot]) == EXACT


def test_a_reused_slot_is_a_fresh_one(bank, make_learner):
    fresh = _train(bank, make_learner(), [0])[0]
    _train(bank, make_learner(), [0], steps=2)
    assert _largest_gap(fresh, _train(bank, make_learner(), [0])[0]) == EXACT


def test_an_idle_slot_does_not_move(bank, make_learner):
    idle = _fresh_optimizer(bank, 1)
    make_learner().forward_backward([_job(1)])
    idle.step(12)
    before = _weights(idle)
    _train(bank, make_learner(), [0, 2], steps=2)
    assert all(parameter.value.grad is None for parameter in idle.parameters)
    assert _largest_gap(before, _weights(idle)) == EXACT


def test_the_gradient_of_a_shared_a_is_the_sum_of_its_projections(bank, make_learner):
    shared = replace(all_linear(bank, rank=3), shared_a=True)
    weights = random_weights(bank, shared)
    parameters = bank.fill(0, shared, weights)
    make_learner().forward_backward([_job(0)])
    ours = {parameter.name: parameter.value.grad for parameter in parameters}
    plain = replace(shared, shared_a=False)
    copied = {plain.name_of_a(module): weights[shared.name_of_a(module)] for module in plain.modules}
    parameters = bank.fill(0, plain, copied | {name: weights[name] for name in map(plain.name_of_b, plain.modules)})
    make_learner().forward_backward([_job(0)])
    theirs = {parameter.name: parameter.value.grad for parameter in parameters}
    summed = {}
    for module in plain.modules:
        name = shared.name_of_a(module)
        summed[name] = summed.get(name, 0) + theirs[plain.name_of_a(module)]
        summed[plain.name_of_b(module)] = theirs[plain.name_of_b(module)]
    assert len(ours) < len(theirs)
    assert _largest_gap(ours, summed) < PARITY


def test_gradients_of_two_batches_add_up(bank, make_learner):
    lora = all_linear(bank)
    parameters = bank.fill(0, lora, random_weights(bank, lora))
    make_learner().forward_backward([_job(0)])
    once = {parameter.name: parameter.value.grad.clone() for parameter in parameters}
    make_learner().forward_backward([_job(0)])
    twice = {parameter.name: parameter.value.grad for parameter in parameters}
    assert _largest_gap(twice, {name: 2 * gradient for name, gradient in once.items()}) < PARITY


def test_adapters_of_different_rank_train_together_as_alone(bank, make_learner):
    small, large = all_linear(bank, rank=2), all_linear(bank, rank=7)
    parameters = {
        0: bank.fill(0, small, random_weights(bank, small)),
        1: bank.fill(1, large, random_weights(bank, large)),
    }
    make_learner().forward_backward([_job(0, seed=0), _job(1, seed=1)])
    joint = {slot: {p.name: p.value.grad for p in named} for slot, named in parameters.items()}
    for slot, rank in ((0, 2), (1, 7)):
        bank.clear(1 - slot)
        assert _largest_gap(joint[slot], _gradients(bank, make_learner(), _job(slot, seed=slot), rank=rank)) == EXACT


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["two alike in a row", "two alike apart"])
def test_adapters_of_different_objectives_have_the_gradient_and_metrics_of_each_alone(bank, make_learner, order):
    gspo, clipped = AlgorithmConfig(loss=GspoLoss()), AlgorithmConfig(entropy_coefficient=0.1)
    algorithms = dict(zip(order, (gspo, gspo, clipped), strict=True))
    jobs = [_job(slot, seed=slot, algorithm=algorithms[slot]) for slot in range(3)]
    lora = all_linear(bank)
    parameters = {slot: bank.fill(slot, lora, random_weights(bank, lora)) for slot in range(3)}
    together = make_learner().forward_backward(jobs)
    joint = {slot: {p.name: p.value.grad for p in named} for slot, named in parameters.items()}
    for job in jobs:
        bank.clear(job.slot)
        assert _largest_gap(joint[job.slot], _gradients(bank, make_learner(), job)) == EXACT
        alone = make_learner().forward_backward([job])[job.slot]
        assert alone.keys() == together[job.slot].keys()
        for name in alone.keys() - {"train/packed_rows"}:
            assert together[job.slot][name] == pytest.approx(alone[name], abs=1e-6), name


def test_samples_without_advantage_add_no_gradient_but_count_in_the_mean(bank, make_learner):
    samples = make_training_samples()
    idle = [replace(sample, reward=1.0) for sample in make_training_samples(prompts=2, seed=5)]
    idle = [replace(sample, id=f"1/{sample.id}", prompt_id=f"1/{sample.prompt_id}") for sample in idle]
    job = _job(0)
    alone = _gradients(bank, make_learner(), job)
    diluted = _gradients(bank, make_learner(), replace(job, samples=[*idle, *samples]))
    tokens, more = (sum(len(sample.response_tokens) for sample in group) for group in (samples, idle))
    scaled = {name: gradient * (tokens + more) / tokens for name, gradient in diluted.items()}
    assert _largest_gap(alone, scaled) < PARITY


def test_equal_rewards_everywhere_give_no_gradient_but_metrics(bank, make_learner):
    job = _job(0)
    job = replace(job, samples=[replace(sample, reward=0.5) for sample in job.samples])
    lora = all_linear(bank)
    parameters = bank.fill(0, lora, random_weights(bank, lora))
    metrics = make_learner().forward_backward([job])[0]
    assert all(parameter.value.grad is None for parameter in parameters)
    assert metrics["loss/total"] == EXACT
    assert metrics["mismatch/logp_abs/mean"] > 0


def test_recompute_gives_the_same_gradients(bank, make_learner, tiny_qwen3, device):
    plain = _gradients(bank, make_learner(), _job(0, dropout_seed="1"), dropout=0.3)
    model = build_model(tiny_qwen3, dtype="float32", device=device, trainer=TrainerConfig(recompute=True))
    again = SlotBank(model)
    recomputed = _gradients(again, Learner(model, again, max_tokens=4096), _job(0, dropout_seed="1"), dropout=0.3)
    assert min(gradient.abs().max() for gradient in recomputed.values()) > 0
    assert _largest_gap(plain, recomputed) == EXACT


def test_recompute_holds_one_layer_at_a_time(tmp_path, device, monkeypatch):
    path = make_tiny_qwen3(tmp_path / "deep", shape=TinyShape(layers=6))
    model = build_model(path, dtype="float32", device=device, trainer=TrainerConfig(recompute=True))
    deep = SlotBank(model)
    lora = lora_of(AdapterConfig(rank=4), num_layers=6)
    deep.fill(0, lora, random_weights(deep, lora))
    held = []

    def counted(self: GradientStacks, *gradients) -> None:
        tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
        storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
        held.append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))

    monkeypatch.setattr(GradientStacks, "add", counted)
    Learner(model, deep, max_tokens=4096).forward_backward([_job(0)])
    first, last = held[:4], held[-4:]
    assert len(held) == 24
    assert max(last) - max(first) < (max(first) - min(first)) / 2


def test_dropout_follows_its_seed(bank, make_learner):
    first, again, other, off = (
        _gradients(bank, make_learner(), _job(0, dropout_seed=seed), dropout=0.3) for seed in ("1", "1", "2", None)
    )
    assert _largest_gap(first, again) == EXACT
    assert _largest_gap(first, other) > 1e-4
    assert _largest_gap(off, _gradients(bank, make_learner(), _job(0))) == EXACT


def test_recomputed_old_log_probabilities_give_ratio_one(bank, make_learner):
    lora = all_linear(bank)
    bank.fill(0, lora, random_weights(bank, lora))
    job = _job(0, algorithm=AlgorithmConfig(old_logp="recompute", tis_clip=None))
    metrics = make_learner().forward_backward([job])[0]
    assert metrics["policy/ratio/mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["policy/clip_fraction"] == EXACT


@pytest.mark.parametrize("old_logp", ["rollout", "recompute"])
def test_dropout_is_in_the_ratio_alone(bank, make_learner, old_logp):
    lora = all_linear(bank, dropout=0.3)
    bank.fill(0, lora, random_weights(bank, lora))
    job, learner = _job(0, algorithm=AlgorithmConfig(old_logp=old_logp)), make_learner()
    plain, dropped = (learner.forward_backward([replace(job, dropout_seed=seed)])[0] for seed in (None, "1"))
    for name in ("mismatch/logp_abs/mean", "mismatch/kl/mean", "policy/logp/mean"):
        assert dropped[name] == pytest.approx(plain[name], abs=1e-6), name
    assert abs(dropped["policy/ratio/mean"] - plain["policy/ratio/mean"]) > 1e-4


def test_samples_cut_off_have_no_gradient_under_the_overlong_filter(bank, make_learner):
    job = _job(0, algorithm=AlgorithmConfig(overlong_filter=True, entropy_coefficient=0.01, kl=KlConfig(coefficient=1)))
    cut = {sample.id for sample in job.samples[::3]}
    job = replace(
        job, samples=[replace(s, finish_reason=FinishReason.LENGTH) if s.id in cut else s for s in job.samples]
    )
    longer = [replace(s, response_tokens=[7, 8], logp_rollout=[-6.0, -6.0]) if s.id in cut else s for s in job.samples]
    filtered = _gradients(bank, make_learner(), job)
    assert _largest_gap(filtered, _gradients(bank, make_learner(), replace(job, samples=longer))) < PARITY
    unfiltered = replace(job, algorithm=job.algorithm.model_copy(update={"overlong_filter": False}))
    assert _largest_gap(filtered, _gradients(bank, make_learner(), unfiltered)) > 1e-3


@pytest.mark.parametrize("old_logp", ["rollout", "recompute"])
def test_kl_in_the_reward_shifts_the_rewards_by_the_sum_over_tokens(bank, make_learner, tiny_qwen3, old_logp):
    lora = all_linear(bank)
    weights = random_weights(bank, lora)
    learner = make_learner()
    algorithm = AlgorithmConfig(
        kl=KlConfig(coefficient=0.05, estimator="k1", where="reward"), old_logp=old_logp, tis_clip=None
    )
    shifted = _gradients(bank, learner, _job(0, algorithm=algorithm))
    bank.fill(0, lora, weights)
    job = _job(0)
    on, off = (learner._score(job, adapter_on=on) for on in (True, False))
    if old_logp == "rollout":
        on = [torch.tensor(sample.logp_rollout) for sample in job.samples]
    samples = [
        replace(sample, reward=sample.reward - 0.05 * (now - reference).sum().item())
        for sample, now, reference in zip(job.samples, on, off, strict=True)
    ]
    plain_algorithm = AlgorithmConfig(old_logp=old_logp, tis_clip=None)
    plain = _gradients(bank, learner, replace(job, samples=samples, algorithm=plain_algorithm))
    assert _largest_gap(shifted, plain) < PARITY


def test_kl_in_the_loss_vanishes_at_the_base_and_grows_away_from_it(bank, make_learner):
    lora = all_linear(bank)
    job = _job(0, algorithm=AlgorithmConfig(kl=KlConfig(coefficient=0.1)))
    bank.fill(0, lora, bank.fresh_weights(lora, 0))
    assert make_learner().forward_backward([job])[0]["loss/kl"] == pytest.approx(0.0, abs=1e-6)
    bank.fill(0, lora, random_weights(bank, lora))
    assert make_learner().forward_backward([job])[0]["loss/kl"] > 1e-3


def test_mismatch_is_zero_where_the_engine_agrees(bank, make_learner):
    lora = all_linear(bank)
    bank.fill(0, lora, random_weights(bank, lora))
    job, learner = _job(0), make_learner()
    scores = learner._score(job, adapter_on=True)
    agreeing = [replace(sample, logp_rollout=logp.tolist()) for sample, logp in zip(job.samples, scores, strict=True)]
    metrics = learner.forward_backward([replace(job, samples=agreeing)])[0]
    assert metrics["mismatch/logp_abs/mean"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["mismatch/kl/mean"] == pytest.approx(0.0, abs=1e-5)
    assert learner.forward_backward([job])[0]["mismatch/logp_abs/mean"] > 0.01
