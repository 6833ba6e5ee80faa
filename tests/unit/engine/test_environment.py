import os

import pytest

from lora_rl.config import EngineConfig
from lora_rl.engine.environment import set_environment


def test_only_an_engine_with_graphs_of_our_sizes_breaks_them_at_attention(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(EngineConfig(enforce_eager=False, cuda_graph_sizes=(1, 8)))
    assert os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    # the same process may start another: vLLM's own choice must not be taken from that one
    set_environment(EngineConfig(enforce_eager=False))
    assert os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "0"
