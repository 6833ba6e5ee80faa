"""From prompts to samples: what the rollout actor does between a data position and a Parquet file.

types.py what comes out, and what an engine must offer; requests.py prompts to seeded requests, shared between engines;
groups.py completions to groups of samples; drawing.py one round on the engines; collection.py rounds until a batch is
full; graders.py the pools of grader processes; actor.py holds it all together.
"""

from lora_rl.rollout.types import EngineClient, GradeReply, RolloutReply

__all__ = ["EngineClient", "GradeReply", "RolloutReply"]
