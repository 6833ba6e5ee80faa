"""Which GPUs trainer and engines get."""

from typing import Literal

from lora_rl.config.base import Section


class PlacementConfig(Section):
    mode: Literal["disaggregated", "colocated"] = "disaggregated"
    """`disaggregated`: trainer ranks and engines have GPUs of their own. `colocated`: they share GPUs and take turns;
    the trainer's memory moves to the host while the engines generate, and the engines sleep while it trains. Without
    GPUs nothing moves."""
