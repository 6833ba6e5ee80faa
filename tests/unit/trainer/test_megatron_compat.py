import logging
import subprocess
import sys

import pytest
import torch

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.trainer.megatron_compat import init_distributed, quiet

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import lora_rl.trainer.megatron_compat as compat
from megatron.core.extensions import transformer_engine
assert not transformer_engine.HAVE_TE
try:
    import triton
except ImportError:
    sys.exit(0)
sys.exit("triton is importable")
"""


def test_megatron_imports_without_triton_and_its_probes_still_find_no_transformer_engine():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_megatron_says_nothing_and_leaves_logging_as_it_was():
    code = "import logging, lora_rl.trainer.megatron_compat; print(len(logging.root.handlers), logging.root.level)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"0 {logging.WARNING}\n"
    assert done.stderr == ""


def test_sums_of_half_precision_products_stay_in_float32(device):
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction


def test_quiet_lets_errors_through(caplog):
    with quiet():
        logging.getLogger("megatron").warning("a deprecation")
        logging.getLogger("megatron").error("a fault")
    logging.getLogger("other").warning("afterwards")
    assert [record.message for record in caplog.records] == ["a fault", "afterwards"]


def test_a_second_topology_in_one_process_is_refused(device):
    with pytest.raises(TrainerError, match="this process is rank 0 of 1"):
        init_distributed(1, 2, TrainerConfig(tensor_parallel=2), "tcp://127.0.0.1:1")


def test_ranks_that_differ_from_the_shares_are_refused():
    with pytest.raises(TrainerError, match="world_size: 2 differs from tensor_parallel 1"):
        init_distributed(0, 2)
