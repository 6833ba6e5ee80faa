import subprocess
import sys
from importlib.metadata import version

import lora_rl
from lora_rl.store import versions


def test_versions_are_those_installed():
    found = versions()
    assert found["lora-rl"] == lora_rl.__version__
    assert found["ray"] == version("ray")
    assert found["torch"] == version("torch")


def test_finding_versions_imports_none_of_the_packages():
    program = "import sys; from lora_rl.store import versions; versions(); print({'torch', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
