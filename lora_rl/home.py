"""The folder of what this machine keeps between runs: converted models, logs, the workstation's state."""

import os
from pathlib import Path


def home() -> Path:
    """`$LORA_RL_HOME`, or `~/.cache/lora-rl`."""
    return Path(os.environ.get("LORA_RL_HOME", "~/.cache/lora-rl")).expanduser().absolute()
