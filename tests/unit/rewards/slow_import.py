"""Takes longer to import than the tests' deadline, as graders with large libraries do."""

import time

from lora_rl.data.types import Sample

_until = time.monotonic() + 4.0
while time.monotonic() < _until:
    pass


def grade(sample: Sample) -> float:
    return 1.0
