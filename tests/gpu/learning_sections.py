"""A short learning run with held-out evaluation."""

import asyncio

from benchmarks.learning import learn
from lora_rl.config import load_config
from tests.gpu.findings import Findings
from tests.gpu.scale import Scale
from tests.resume.conftest import ROOT

LEAST_GAIN = 0.1
"""Of the share of exact answers, in a run of two minutes."""


def learning(found: Findings, scale: Scale) -> None:
    """Exact answers to prompts that training never saw, before and after."""
    if scale.tiny:
        config, held_out, score = load_config(ROOT / "examples" / "tiny.yaml", []), 16, "format"
    else:
        config, held_out, score = load_config(ROOT / "examples" / "h200-smollm2.yaml", []), 256, "exact"
    evaluations = asyncio.run(
        learn(config, scale.out, minutes=scale.learning_minutes, every=20, held_out=held_out, score=score)
    )
    for each in evaluations:
        found.note(f"held out, {score}, after {each.iterations} iterations and {each.minutes:.1f} min", each.score)
    if not scale.tiny:
        found.at_least(f"gain in held-out {score}", evaluations[-1].score - evaluations[0].score, LEAST_GAIN)
