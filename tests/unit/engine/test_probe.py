import math

import pytest

from lora_rl.engine.probe import judge
from lora_rl.engine.types import Probe
from lora_rl.errors import EngineError

BASE = [-1.0, -2.0, -3.0]
LOGP = [-1.5, -1.8, -3.1]
PROBE = Probe(prompt_tokens=[1, 2], token_ids=[7, 8, 9], logp=LOGP, logp_base=BASE)
AT_START = Probe(prompt_tokens=[1, 2], token_ids=[7, 8, 9], logp=BASE, logp_base=BASE)


def shifted(values: list[float], by: float) -> list[float]:
    return [value + by for value in values]


def test_an_engine_that_agrees_passes_and_reports_its_numbers():
    result = judge("a@1", PROBE, shifted(LOGP, 0.01), shifted(BASE, -0.01), tolerance=0.2)
    assert result.error == pytest.approx(0.01)
    assert result.effect == pytest.approx(0.48)


def test_a_disagreement_above_the_tolerance_is_refused():
    with pytest.raises(EngineError, match=r"a@1: probe disagrees.* is 0\.3, above engine\.probe_tolerance 0\.2"):
        judge("a@1", PROBE, shifted(LOGP, 0.3), BASE, tolerance=0.2)


def test_an_adapter_that_does_nothing_in_the_engine_is_refused_though_within_the_tolerance():
    with pytest.raises(EngineError, match="no module matched"):
        judge("a@1", PROBE, BASE, BASE, tolerance=10.0)


def test_an_adapter_that_acts_in_part_is_refused_though_within_the_tolerance():
    with pytest.raises(EngineError, match="not every module matched"):
        judge("a@1", PROBE, [-1.2, -1.95, -3.02], BASE, tolerance=10.0)


def test_a_faint_effect_that_is_exactly_zero_in_a_coarse_engine_is_refused():
    faint = Probe(prompt_tokens=[1], token_ids=[7, 8, 9], logp=shifted(BASE, 0.001), logp_base=BASE)
    with pytest.raises(EngineError, match="no module matched"):
        judge("a@1", faint, shifted(BASE, 0.05), shifted(BASE, 0.05), tolerance=0.2)


def test_a_faint_effect_below_the_noise_of_a_coarse_engine_passes():
    faint = Probe(prompt_tokens=[1], token_ids=[7, 8, 9], logp=shifted(BASE, 0.001), logp_base=BASE)
    judge("a@1", faint, shifted(BASE, 0.06), shifted(BASE, 0.05), tolerance=0.2)


def test_a_fresh_adapter_without_effect_passes():
    assert judge("a@0", AT_START, shifted(BASE, 1e-7), BASE, tolerance=0.2).effect == pytest.approx(1e-7)


@pytest.mark.parametrize("where", ["engine", "engine base", "trainer"])
def test_nan_never_passes(where: str):
    nan = [math.nan, -1.0, -1.0]
    probe = Probe(prompt_tokens=[1], token_ids=[7, 8, 9], logp=nan, logp_base=BASE) if where == "trainer" else PROBE
    with pytest.raises(EngineError, match="probe disagrees"):
        judge(
            "a@1",
            probe,
            nan if where == "engine" else LOGP,
            nan if where == "engine base" else BASE,
            tolerance=math.inf,
        )
