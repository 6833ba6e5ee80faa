"""All that can be wrong with a run and can be known before anything is allocated, found at once."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from lora_rl.cluster.layout import demand_of, room_fault
from lora_rl.config import EngineConfig, RunConfig
from lora_rl.data.sources import check_data
from lora_rl.engine.kv_cache import kv_cache_faults
from lora_rl.errors import ConfigError, LoraRlError
from lora_rl.models import check_model, read_model_config
from lora_rl.rewards import check_rewards
from lora_rl.store import open_store
from lora_rl.trainer.adapter import adapter_faults
from lora_rl.trainer.init_adapter import resolve_run
from lora_rl.trainer.model_rules import length_faults, model_faults
from lora_rl.trainer.topology import engine_faults, has_experts, topology_faults

GIB = 2**30
RUNTIME_GIB = 4.0
"""Ray, Prefect and the imports of engine and trainer, measured with the tiny model."""


def check_run(config: RunConfig, *, starts_actors: bool = True, writes: bool = True) -> RunConfig:
    """The config as it is recorded, after every check.

    Raises ConfigError that lists every fault of model, data, reward, adapter, trainer, store, and GPUs or memory.
    These last count where the actors are still to start on this machine: standing ones have theirs. `writes` lets
    the store be tried out.
    """
    try:
        resolved, init_faults = resolve_run(config), []
    except ConfigError as error:
        resolved, init_faults = config, str(error).splitlines()
    model_config = read_model_config(config.model)
    data, data_faults = check_data(config.data, seed=config.seed)
    num_layers, sparse = (model_config or {}).get("num_hidden_layers"), has_experts(model_config or {})
    faults = [
        *check_model(config.model),
        *data_faults,
        *check_rewards(config.reward),
        *adapter_faults(resolved.adapter, num_layers, sparse=sparse),
        *init_faults,
        *([] if model_config is None else _check_architecture(config, model_config)),
        *_check_store(config, writes=writes),
        *(_check_room(config, model_config) if starts_actors else []),
    ]
    if faults:
        count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
        raise ConfigError(f"{config.run_name}: {count}\n" + "\n".join(f"  {fault}" for fault in faults))
    return resolved.model_copy(update={"data": data})


def make_importable(folder: Path) -> None:
    """Graders named `module:function` may stand beside the config; processes started from here inherit the path."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def _check_architecture(config: RunConfig, model_config: dict[str, Any]) -> list[str]:
    if unsupported := model_faults(model_config):
        return [f"model.name: {config.model.name}: {fault}" for fault in unsupported]
    return [
        *topology_faults(config.trainer, model_config),
        *engine_faults(config.engine, model_config),
        *length_faults(config.engine.max_model_len, model_config),
    ]


def _check_store(config: RunConfig, *, writes: bool) -> list[str]:
    try:
        store = open_store(config.store)
        if writes:
            store.check()
    except LoraRlError as error:
        return [f"store.uri: {error}"]
    return []


def needed_gib(engine: EngineConfig) -> float:
    """Free memory in GiB that a run with these engines starts with on a CPU."""
    return RUNTIME_GIB + _num_processes(engine) * engine.kv_cache_gib


def _num_processes(engine: EngineConfig) -> int:
    return engine.replicas * engine.tensor_parallel


def _check_room(config: RunConfig, model_config: dict[str, Any] | None) -> list[str]:
    """Of GPUs where there are any, else of memory: there the KV cache lies in it."""
    gpus = _num_gpus()
    faults = _check_gpus(config, gpus) if gpus else _check_memory(config.engine)
    if model_config is None or model_faults(model_config):
        return faults
    given = "gpu_kv_cache_gib" if gpus else "kv_cache_gib"
    return [*faults, *kv_cache_faults(config.engine, given, model_config, dtype=config.model.dtype)]


def _check_gpus(config: RunConfig, gpus: int) -> list[str]:
    fault = room_fault(demand_of(config), [gpus])
    return [fault] if fault else []


def _check_memory(engine: EngineConfig) -> list[str]:
    needed = needed_gib(engine)
    available = psutil.virtual_memory().available / GIB
    if needed > available:
        return [
            f"engine.kv_cache_gib: {engine.kv_cache_gib:g} for {_num_processes(engine)} engine process(es) and "
            f"{RUNTIME_GIB:g} GiB for all else are {needed:.1f} GiB, but {available:.1f} GiB are free; lower it"
        ]
    return []


def _num_gpus() -> int:
    """GPUs that Ray would find here, without it: it reads its settings when it is imported."""
    if find_spec("pynvml") is None:
        return 0
    pynvml: Any = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        found = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len([gpu for gpu in visible.split(",") if gpu]))
