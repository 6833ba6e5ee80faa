"""Every stand-in and patch that lets Megatron-core and Megatron-Bridge run without Transformer Engine, CUDA or CPU.

Importing this module imports both; take Megatron names from here or after it. Each patch says what breaks without it.
"""

import builtins
import importlib.metadata
import importlib.util
import io
import logging
import types
import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import typing_extensions

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.trainer.meeting import join
from lora_rl.trainer.ranks import Groups

STAND_INS = {
    "triton": ("megatron.core",),
    "transformer_engine": ("megatron.bridge",),
}
"""Packages that some modules import without need, and the importers that get a stand-in where they are missing.

megatron.core is not listed under transformer_engine: its own probes must go on finding that it is missing.
"""


class _Anything(type):
    """A class whose every attribute is such a class: enough for base classes, decorators and annotations."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *args: object, **kwargs: object) -> object:
        # As a decorator it leaves the function; as a maker of decorators it makes itself.
        return args[0] if args and callable(args[0]) else cls


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    # Older than any version that is asked for.
    __version__ = "0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


def _stand_in(dotted: str, made: dict[str, _StandIn]) -> _StandIn:
    """The stand-in of `dotted`, with its parents made and linked."""
    module = made.setdefault(dotted, _StandIn(dotted))
    parent, _, child = dotted.rpartition(".")
    if parent:
        setattr(_stand_in(parent, made), child, module)
    return module


@contextmanager
def _missing_packages_stood_in() -> Iterator[None]:
    """Within, an import of a missing package by the importers of STAND_INS gives a stand-in; all others still fail."""
    real_import = builtins.__import__
    missing = {package for package in STAND_INS if importlib.util.find_spec(package) is None}
    made: dict[str, _StandIn] = {}

    def importing(name, globals=None, locals=None, fromlist=(), level=0):
        package = name.partition(".")[0]
        importer = (globals or {}).get("__name__", "")
        if level == 0 and package in missing and importer.startswith(STAND_INS[package]):
            module = _stand_in(name, made)
            return module if fromlist else made[package]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = importing
    try:
        yield
    finally:
        builtins.__import__ = real_import


@contextmanager
def quiet() -> Iterator[None]:
    """Within, Megatron's prints, progress bars, warnings and logs below errors are dropped.

    It reports each missing package, each deprecation and each parameter, and changes the root logger.
    """
    handlers, level, disabled = logging.root.handlers[:], logging.root.level, logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


if not hasattr(typing, "override"):
    # Megatron imports typing.override, which came with Python 3.12.
    typing.override = typing_extensions.override  # pyright: ignore[reportAttributeAccessIssue]

if not torch.cuda.is_available():
    # The rotary embedding moves its frequencies to torch.cuda.current_device() on first use.
    torch.cuda.current_device = lambda: torch.device("cpu")  # pyright: ignore[reportAttributeAccessIssue]

with quiet(), _missing_packages_stood_in():
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state
    from megatron.core.models.common.language_module.language_module import LanguageModule
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel import mappings
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP

if not torch.cuda.is_available():
    # A tied embedding gets to the last stage by way of CUDA; Megatron-Bridge copies it there all the same.
    LanguageModule._is_in_embd_group = lambda self: False

# Their own __version__ ends in the commit of whatever repository is the working directory.
VERSIONS = {name: importlib.metadata.version(name) for name in ("torch", "megatron-core", "megatron-bridge")}


def init_distributed(
    rank: int, world_size: int, trainer: TrainerConfig = TrainerConfig(), rendezvous: str | None = None
) -> torch.device:
    """Join the `world_size` processes of the trainer's layout; returns this rank's device. NCCL on CUDA, else gloo.

    The device is the first that CUDA_VISIBLE_DEVICES shows: whoever starts the ranks shows each its own.

    `rendezvous` is a torch init method (`tcp://host:port`, `file:///path`); null for a single process. A process that
    has joined already keeps its groups, if they are the same. Raises TrainerError for a topology that cannot be.
    """
    if world_size != trainer.world_size:
        raise TrainerError(
            f"world_size: {world_size} differs from tensor_parallel {trainer.tensor_parallel} * pipeline_parallel "
            f"{trainer.pipeline_parallel} * data_parallel {trainer.data_parallel}; start one process for each share"
        )
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    # Parts of a long sum would be rounded to half precision before they are added: the engine has this off too.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise TrainerError(
                f"rank: {rank} of {world_size} asked for, but this process is rank {dist.get_rank()} of "
                f"{dist.get_world_size()}; use a process for each"
            )
        return device
    if world_size > 1 and rendezvous is None:
        raise TrainerError(
            f"rendezvous: not given for {world_size} processes; give all of them one tcp:// or file:// address"
        )
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rendezvous is None:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=alone, rank=rank, world_size=world_size)
    else:
        join(backend, rendezvous, rank, world_size)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=trainer.tensor_parallel,
        pipeline_model_parallel_size=trainer.pipeline_parallel,
        expert_model_parallel_size=trainer.expert_parallel,
    )
    return device


def process_groups(device: torch.device) -> Groups:
    """This rank's groups under Megatron's layout. All ranks must call it."""
    pp: Any = parallel_state.get_pipeline_model_parallel_group()
    pp_back = pp
    if pp.size() > 1:
        # Every rank must take part in making each of the groups.
        distance = dist.get_world_size() // pp.size()
        stages = [range(first, dist.get_world_size(), distance) for first in range(distance)]
        pp_back = [dist.new_group(ranks) for ranks in stages][dist.get_rank() % distance]
    return Groups(
        device=device,
        world=dist.group.WORLD,
        tp=parallel_state.get_tensor_model_parallel_group(),
        dp=parallel_state.get_data_parallel_group(),
        ep=parallel_state.get_expert_model_parallel_group(),
        edp=parallel_state.get_expert_data_parallel_group(),
        pp=pp,
        pp_back=pp_back,
    )


def leave_distributed() -> None:
    """Leave the process groups, if this process is in any."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


__all__ = [
    "MLP",
    "VERSIONS",
    "AutoBridge",
    "GPTModel",
    "IdentityOp",
    "PackedSeqParams",
    "SelfAttention",
    "get_gpt_layer_local_spec",
    "init_distributed",
    "leave_distributed",
    "mappings",
    "process_groups",
    "quiet",
]
