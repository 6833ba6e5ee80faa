"""Does the engine serve what the trainer exported? Both score K tokens after one prompt, adapter on and off."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lora_rl.engine.types import Probe
from lora_rl.errors import EngineError

CLEAR = 10.0
"""An effect this many times the disagreement on the base model is no noise."""

ROUNDING = 1e-6
"""Noise of a log-probability in float32."""

FAINT = 1e-4
"""An effect above this moves some logit in bfloat16 too; an engine in which none moves has not applied the adapter."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    error: float
    """Mean |logp engine - logp trainer|, adapter on: one token alone is off by 0.2 in bfloat16 where all is well."""
    effect: float
    """Largest |logp on - logp off| in the engine."""


def judge(
    label: str, probe: Probe, logp: Sequence[float], logp_base: Sequence[float], *, tolerance: float
) -> ProbeResult:
    """Compares the engine's log-probabilities [K], adapter on and off, with the trainer's.

    Raises EngineError where they lie further apart than `tolerance` on average, or where the adapter moves the engine's
    otherwise than the trainer's: then key names matched no module, or only some.
    """
    effects = [on - off for on, off in zip(logp, logp_base, strict=True)]
    trainer_effects = [on - off for on, off in zip(probe.logp, probe.logp_base, strict=True)]
    error, effect = _mean_gap(logp, probe.logp), _largest_gap(logp, logp_base)
    trainer_effect = _largest_gap(probe.logp, probe.logp_base)
    if trainer_effect > FAINT and effect == 0:
        raise EngineError(
            f"{label}: no module matched: the adapter moves the trainer's log-probabilities by {trainer_effect:.4g}, "
            "the engine's not at all; name the tensors as the base model's modules"
        )
    # Also refuses NaN, which compares false with everything.
    if not error <= tolerance or not math.isfinite(effect):
        raise EngineError(
            f"{label}: probe disagrees, mean |logp engine - logp trainer| is {error:.4g}, above engine.probe_tolerance "
            f"{tolerance:g}; check that both run the same base model and dtype, then export again or raise it"
        )
    noise = max(_largest_gap(logp_base, probe.logp_base), ROUNDING)
    if trainer_effect > CLEAR * noise and (gap := _largest_gap(effects, trainer_effects)) > trainer_effect / 2:
        raise EngineError(
            f"{label}: not every module matched: the adapter moves the trainer's log-probabilities by up to "
            f"{trainer_effect:.4g}, the engine's by other amounts (up to {gap:.4g} apart); name the tensors as the "
            "base model's modules"
        )
    return ProbeResult(error=error, effect=effect)


def _mean_gap(left: Sequence[float], right: Sequence[float]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(left, right, strict=True))


def _largest_gap(left: Sequence[float], right: Sequence[float]) -> float:
    gaps = [abs(a - b) for a, b in zip(left, right, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)
