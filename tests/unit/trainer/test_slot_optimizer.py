import math

import pytest
import torch
from torch import nn

from lora_rl.config import OptimizerConfig
from lora_rl.trainer.adapter import Clock
from lora_rl.trainer.gradients import SlotParameter
from lora_rl.trainer.slot_optimizer import SlotOptimizer, learning_rate
from lora_rl.trainer.state_io import MOMENTS
from tests.tolerances import EXACT, FORMULA
from tests.unit.trainer.one_rank import ONE_RANK

TWO_ALIKE = {"a": (3, 4), "b": (3, 4)}


def _optimizer(
    clock: Clock = Clock(),
    *,
    frozen: tuple[str, ...] = (),
    shapes: dict[str, tuple[int, ...]] = TWO_ALIKE,
    split: tuple[str, ...] = (),
    **options,
) -> SlotOptimizer:
    draw = torch.Generator().manual_seed(0)
    parameters = [
        SlotParameter(
            name=name,
            value=nn.Parameter(torch.randn(shape, generator=draw)),
            split_dim=-1 if name in split else None,
            of_experts=len(shape) == 3,
        )
        for name, shape in shapes.items()
    ]
    moments = {moment: {name: torch.zeros(shape) for name, shape in shapes.items()} for moment in MOMENTS}
    return SlotOptimizer(parameters, OptimizerConfig(**options), clock, moments, ONE_RANK, frozen=frozen)


def _set_gradients(optimizer: SlotOptimizer, value: float) -> None:
    for index, parameter in enumerate(optimizer.parameters):
        parameter.value.grad = torch.full((3, 4), value * (index + 1))


def _values(optimizer: SlotOptimizer) -> list[torch.Tensor]:
    return [parameter.value.detach().clone() for parameter in optimizer.parameters]


@pytest.mark.parametrize(
    ("schedule", "samples", "ratio"),
    [
        ("constant", 0, 0.0),
        ("constant", 5, 0.5),
        ("constant", 10, 1.0),
        ("constant", 999, 1.0),
        ("linear", 10, 1.0),
        ("linear", 60, 0.2 + 0.8 * 0.5),
        ("linear", 110, 0.2),
        ("linear", 500, 0.2),
        ("cosine", 10, 1.0),
        ("cosine", 35, 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2),
        ("cosine", 110, 0.2),
    ],
)
def test_rate_warms_up_then_decays_in_samples(schedule, samples, ratio):
    config = OptimizerConfig(lr=1e-3, schedule=schedule, warmup_samples=10, decay_samples=110, min_lr_ratio=0.2)
    assert learning_rate(config, samples) == pytest.approx(1e-3 * ratio, rel=FORMULA)


def test_the_first_step_of_a_warm_up_has_a_rate():
    optimizer = _optimizer(lr=1e-2, warmup_samples=32)
    _set_gradients(optimizer, 1.0)
    assert optimizer.step(8).lr == pytest.approx(1e-2 * 8 / 32)


def test_gradient_norm_is_that_of_all_parameters_and_clips():
    optimizer = _optimizer(clip_grad_norm=0.5, betas=(0.0, 0.999), lr=1e-3)
    _set_gradients(optimizer, 1.0)
    result = optimizer.step(1)
    norm = math.sqrt(12 * 1 + 12 * 4)
    assert result.grad_norm == pytest.approx(norm, rel=FORMULA)
    # With beta 0 the first moment is the clipped gradient itself.
    assert optimizer.moment("exp_avg", optimizer.parameters[0]).mean().item() == pytest.approx(0.5 / norm, rel=1e-5)


def test_a_gradient_below_the_limit_is_not_scaled():
    optimizer = _optimizer(clip_grad_norm=100.0, betas=(0.0, 0.999))
    _set_gradients(optimizer, 1.0)
    optimizer.step(1)
    assert (optimizer.moment("exp_avg", optimizer.parameters[0]) - 1).abs().max() == EXACT


def test_norm_and_clipping_are_torch_s_for_parameters_of_any_shape():
    shapes = {"a": (4, 6), "b": (5, 4), "c": (1, 1), "d": (2, 3, 4), "e": (3, 1, 2)}
    optimizer = _optimizer(shapes=shapes, split=("b", "e"), clip_grad_norm=0.5, betas=(0.0, 0.999))
    draw = torch.Generator().manual_seed(1)
    plain = [nn.Parameter(torch.zeros(shape)) for shape in shapes.values()]
    # Transposed: not all are contiguous.
    theirs = [torch.randn(p.shape[::-1], generator=draw).permute(*reversed(range(p.dim()))) for p in plain]
    for parameter, other, gradient in zip(optimizer.parameters, plain, theirs, strict=True):
        parameter.value.grad, other.grad = gradient.clone(), gradient
    norm = torch.nn.utils.clip_grad_norm_(plain, 0.5).item()
    assert optimizer.step(1).grad_norm == pytest.approx(norm, rel=FORMULA)
    for parameter, gradient in zip(optimizer.parameters, theirs, strict=True):
        assert (optimizer.moment("exp_avg", parameter) - gradient).abs().max() < FORMULA


def test_the_norm_of_a_large_parameter_is_as_exact_as_of_a_small_one():
    optimizer = _optimizer(shapes={"a": (1024, 1024)}, split=("a",))
    optimizer.parameters[0].value.grad = torch.full((1024, 1024), 0.1)
    assert optimizer.step(1).grad_norm == pytest.approx(1024 * 0.1, rel=FORMULA)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_parameter_without_gradient_neither_moves_nor_counts_in_the_norm(missing):
    optimizer = _optimizer(clip_grad_norm=0.5, weight_decay=0.1)
    before = _values(optimizer)
    _set_gradients(optimizer, 1.0)
    optimizer.parameters[missing].value.grad = None
    result = optimizer.step(1)
    after = _values(optimizer)
    assert (result.stepped, result.grad_norm) == (True, pytest.approx((2 - missing) * math.sqrt(12), rel=FORMULA))
    assert torch.equal(after[missing], before[missing])
    assert (after[1 - missing] - before[1 - missing]).abs().min() > 0


@pytest.mark.parametrize("shapes", [TWO_ALIKE, {}], ids=["no gradient", "no parameter"])
def test_no_gradient_at_all_is_no_step_though_its_samples_count(shapes):
    optimizer = _optimizer(shapes=shapes, weight_decay=0.1)
    before = _values(optimizer)
    result = optimizer.step(4)
    assert (result.stepped, result.finite, result.grad_norm) == (False, True, EXACT)
    assert optimizer.clock == Clock(steps=0, samples=4)
    assert all(torch.equal(a, b) for a, b in zip(before, _values(optimizer), strict=True))


def test_a_large_gradient_within_float32_is_clipped_to_the_limit():
    optimizer = _optimizer(clip_grad_norm=1.0, betas=(0.0, 0.999))
    _set_gradients(optimizer, 1e18)
    result = optimizer.step(1)
    assert (result.stepped, result.grad_norm) == (True, pytest.approx(1e18 * math.sqrt(60), rel=FORMULA))
    moments = [optimizer.moment("exp_avg", parameter) for parameter in optimizer.parameters]
    assert torch.stack(moments).norm().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("value", [1e20, 5e18], ids=["each square", "their sum alone"])
@pytest.mark.parametrize("split", [(), ("b",), ("a", "b")])
def test_a_gradient_whose_squares_leave_float32_is_not_finite(value, split):
    optimizer = _optimizer(split=split, clip_grad_norm=1.0)
    before = _values(optimizer)
    _set_gradients(optimizer, value)
    result = optimizer.step(1)
    assert (result.stepped, result.finite, result.grad_norm) == (False, False, math.inf)
    assert all(torch.equal(a, b) for a, b in zip(before, _values(optimizer), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted(bad, where):
    optimizer = _optimizer(weight_decay=0.1, split=("b",))
    before = _values(optimizer)
    _set_gradients(optimizer, 1.0)
    optimizer.parameters[where].value.grad[2, 3] = bad
    result = optimizer.step(4)
    assert (result.stepped, result.finite) == (False, False)
    assert optimizer.clock == Clock(steps=0, samples=4, skipped_in_a_row=1)
    assert all(torch.equal(a, b) for a, b in zip(before, _values(optimizer), strict=True))
    assert optimizer.moment("exp_avg", optimizer.parameters[0]).abs().max() == EXACT


def test_a_loss_that_is_not_finite_moves_nothing_though_its_gradient_is():
    optimizer = _optimizer()
    before = _values(optimizer)
    _set_gradients(optimizer, 1.0)
    assert not optimizer.step(4, finite_loss=False).stepped
    assert optimizer.clock.skipped_in_a_row == 1
    assert all(torch.equal(a, b) for a, b in zip(before, _values(optimizer), strict=True))


def test_a_finite_step_ends_the_row_of_skipped_ones():
    optimizer = _optimizer(Clock(steps=3, samples=9, skipped_in_a_row=2))
    _set_gradients(optimizer, 1.0)
    assert optimizer.step(2).stepped
    assert optimizer.clock == Clock(steps=4, samples=11, skipped_in_a_row=0)


def test_a_zero_gradient_moves_nothing_in_spite_of_momentum_and_weight_decay():
    optimizer = _optimizer(weight_decay=0.1)
    _set_gradients(optimizer, 1.0)
    optimizer.step(1)
    before = _values(optimizer)
    _set_gradients(optimizer, 0.0)
    result = optimizer.step(1)
    assert (result.stepped, result.finite) == (False, True)
    assert optimizer.clock == Clock(steps=1, samples=2)
    assert all(torch.equal(a, b) for a, b in zip(before, _values(optimizer), strict=True))


def test_a_frozen_parameter_neither_moves_nor_counts_in_the_norm():
    optimizer = _optimizer(frozen=("b",), weight_decay=0.1, lr=1e-2)
    before = _values(optimizer)
    for _ in range(2):
        _set_gradients(optimizer, 1.0)
        optimizer.parameters[1].value.grad = torch.full((3, 4), math.nan)
        result = optimizer.step(1)
    after = _values(optimizer)
    assert (result.stepped, result.grad_norm) == (True, pytest.approx(math.sqrt(12), rel=FORMULA))
    assert (after[0] - before[0]).abs().min() > 0
    assert torch.equal(after[1], before[1])
    assert optimizer.moment("exp_avg", optimizer.parameters[1]).abs().max() == EXACT
    assert optimizer.parameters[1].value.grad is None


def test_steps_are_those_of_torch_adamw():
    optimizer = _optimizer(lr=1e-2, weight_decay=0.1, clip_grad_norm=None)
    plain = [nn.Parameter(value) for value in _values(optimizer)]
    adamw = torch.optim.AdamW(plain, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for gradient in (1.0, -0.5, 0.25):
        _set_gradients(optimizer, gradient)
        optimizer.step(1)
        for index, parameter in enumerate(plain):
            parameter.grad = torch.full((3, 4), gradient * (index + 1))
        adamw.step()
    assert all(torch.equal(a, b) for a, b in zip(plain, _values(optimizer), strict=True))
