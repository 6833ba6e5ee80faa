"""Our way to load an adapter against vLLM's own, in one process: the same bits in the same buffers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.environment import set_environment
from lora_rl.store import download_adapter, open_store
from tests.peft_adapters import PeftExporter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_slot_holds_what_vllm_would_have_put_there(
    model_path: Path, store: StoreConfig, exporter: PeftExporter, tmp_path: Path, dtype: str
) -> None:
    adapter = exporter.export("slots", 1)
    download_adapter(open_store(store), adapter, tmp_path)
    command = [
        sys.executable,
        "-m",
        "tests.integration.engine.test_mapped_loras",
        str(model_path),
        dtype,
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["layers"] > 0
    assert found["unequal"] == []
    assert found["nonzero"]
    assert found["kept"] == 0
    assert found["reduced"] == [False, False]
    assert "left its slot" in found["after"]
    assert "no layer is named" in found["misnamed"]


def compare(model: str, dtype: str, peft: str) -> dict[str, object]:
    """Loads the adapter under number 1 by us and under 2 by vLLM, and compares both slots of every layer."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    set_environment(EngineConfig())
    import torch
    from safetensors.torch import load_file, save_file
    from vllm import LLM
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.request import LoRARequest

    options = {"max_lora_rank": 8, "max_loras": 3, "max_cpu_loras": 3, "enable_lora": True}
    llm = LLM(
        model,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=64,
        kv_cache_memory_bytes=2**26,
        enable_chunked_prefill=False,
        **options,
    )
    worker = llm.llm_engine.model_executor.driver_worker.worker
    loras = worker.model_runner.lora_manager
    assert worker.add_lora(LoRARequest("ours", 1, peft))
    kept = len(loras._adapter_manager.get_adapter(1).loras)
    ours, loras._lora_model_cls = loras._lora_model_cls, LoRAModel
    assert worker.add_lora(LoRARequest("shipped", 2, peft))
    loras._lora_model_cls = ours
    unequal, nonzero, modules = [], True, loras._adapter_manager.modules
    slots = [loras._adapter_manager.lora_index_to_id.index(number) for number in (1, 2)]
    for name, layer in modules.items():
        if name not in loras._adapter_manager.get_adapter(2).loras:
            continue
        for stacked in (*layer.lora_a_stacked, *layer.lora_b_stacked):
            nonzero = nonzero and bool(stacked[slots[0]].any())
            if not torch.equal(stacked[slots[0]], stacked[slots[1]]):
                unequal.append(name)
    products = torch.backends.cuda.matmul
    weights = Path(peft, "adapter_model.safetensors")
    save_file({name.replace("_proj", "_projection"): tensor for name, tensor in load_file(weights).items()}, weights)
    return {
        "layers": len(modules),
        "unequal": unequal,
        "nonzero": nonzero,
        "kept": kept,
        "reduced": [products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction],
        "after": refusal(lambda: loras._adapter_manager.get_adapter(1).get_lora("x")),
        "misnamed": refusal(lambda: worker.add_lora(LoRARequest("misnamed", 3, peft))),
    }


def refusal(call: object) -> str:
    try:
        call()  # pyright: ignore[reportCallIssue]
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print("\n" + json.dumps(compare(*sys.argv[1:])))
