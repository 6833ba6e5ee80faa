"""Prompts in, samples out.

types.py holds the records; rows.py reads files, hub data sets and procedural tasks, each by its own module, and digests
them; chat.py renders rows for the model; sources.py puts prompts in an order that a position can go on from;
samples_io.py is the Parquet form of samples; exact_json.py carries metadata.
"""

from lora_rl.data.types import FinishReason, Prompt, Sample

__all__ = ["FinishReason", "Prompt", "Sample"]
