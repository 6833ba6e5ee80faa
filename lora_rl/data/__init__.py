"""Prompts in, samples out.

types.py holds the records; rows.py reads rows of files, hub data sets and procedural tasks; chat.py renders them for
the model; sources.py puts both in an order that a position can go on from; samples_io.py is the Parquet form of samples.
"""

from lora_rl.data.types import FinishReason, Prompt, Sample

__all__ = ["FinishReason", "Prompt", "Sample"]
