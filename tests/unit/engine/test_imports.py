import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["lora_rl.engine", "lora_rl.engine.types", "lora_rl.engine.actor", "lora_rl.engine.plugin"]
)
def test_importing_the_engine_brings_in_no_heavy_library(module: str):
    code = f"import sys, {module}; print([name for name in ('torch', 'vllm', 'ray', 'prefect') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
