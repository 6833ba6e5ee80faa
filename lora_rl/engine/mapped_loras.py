"""How vLLM's workers load an adapter: mapped from memory, moved to the device in one copy, kept in its slot alone.

vLLM's own way (`vllm/lora/lora_model.py`) casts and pins tensor by tensor, and keeps a second copy of each adapter on
the CPU for the case that it leaves its slot. Ours never do: there are as many slots as adapters. Names, shapes and
scaling are still vLLM's.
"""

import json
import struct
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.platforms import current_platform
from vllm.v1.worker import lora_model_runner_mixin

from lora_rl.store.shared_file import SharedFiles

_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
_foreach_zero_: Any = torch._foreach_zero_  # pyright: ignore[reportPrivateImportUsage]

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class MappedLora(LoRAModel):
    """An adapter whose tensors are views of one copy of its file on the device, until it is in its slot."""

    in_slot = False

    @classmethod
    def from_local_checkpoint(
        cls,
        lora_dir: str,
        expected_lora_modules: Collection[str],
        peft_helper: PEFTHelper,
        *,
        lora_model_id: int,
        dtype: torch.dtype,
        weights_mapper: Any = None,
        **_: Any,
    ) -> "LoRAModel":
        """The adapter in the PEFT directory `lora_dir`. Raises ValueError for names that no layer has."""
        device = current_platform.device_type
        try:
            lora = cls.from_lora_tensors(
                lora_model_id=lora_model_id,
                tensors=read_tensors(Path(lora_dir, "adapter_model.safetensors"), device),
                peft_helper=peft_helper,
                device=device,
                dtype=dtype,
                weights_mapper=weights_mapper,
            )
        finally:
            # the file's owner may write the next version there, or take it away
            _wait_for_copies(device)
        _scale(lora.loras.values())
        unexpected = sorted(name for name in lora.loras if _kind(name) not in expected_lora_modules)
        if unexpected:
            raise ValueError(f"no layer is named {unexpected[0]}, and {len(unexpected) - 1} more")
        return lora

    def get_lora(self, module_name: str) -> Any:
        if self.in_slot:
            raise RuntimeError(f"adapter {self.id} has left its slot; start the engine again")
        return super().get_lora(module_name)

    def settle(self) -> None:
        """Lets go of the tensors: the slot has them."""
        if not self.in_slot:
            self.loras.clear()
            self.in_slot = True


class MappedLoraManager(LRUCacheWorkerLoRAManager):
    """vLLM's manager with adapters of that kind."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lora_model_cls = MappedLora
        self._stacks: list[Tensor] = []
        self._slot_stacks: dict[int, list[Tensor]] = {}

    def create_lora_manager(self, *args: Any, **kwargs: Any) -> Any:
        model = super().create_lora_manager(*args, **kwargs)
        for layer in self._adapter_manager.modules.values():
            if isinstance(layer, BaseLinearLayerWithLoRA):
                self._stacks += [*layer.lora_a_stacked, *layer.lora_b_stacked]
                layer.reset_lora = _nothing
        return model

    def add_adapter(self, lora_request: Any) -> bool:
        if lora_request.lora_int_id not in self.list_adapters():
            self._empty_free_slot()
        loaded = super().add_adapter(lora_request)
        lora = self._adapter_manager.get_adapter(lora_request.lora_int_id)
        if isinstance(lora, MappedLora):
            lora.settle()
        return loaded

    def _empty_free_slot(self) -> None:
        """Zeros in all layers at once, in the place of a fill for each of hundreds of tensors."""
        slots = self._adapter_manager.lora_index_to_id
        if None not in slots:
            raise RuntimeError(f"all {len(slots)} slots hold adapters; unload one first")
        index = slots.index(None)
        if index not in self._slot_stacks:
            self._slot_stacks[index] = [stack[index] for stack in self._stacks]
        _foreach_zero_(self._slot_stacks[index])


def read_tensors(path: Path, device: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, all views of one copy of it on `device`, which may still be under way."""
    bytes_N = _files(device).read(path)
    (length,) = struct.unpack("<Q", bytes_N[:8].numpy().tobytes())
    header = json.loads(bytes_N[8 : 8 + length].numpy().tobytes())
    header.pop("__metadata__", None)
    # a copy also on the CPU: scaling is multiplied in place
    data = bytes_N[8 + length :].to(device, copy=True, non_blocking=True)
    return {
        name: data[slice(*entry["data_offsets"])].view(TYPES[entry["dtype"]]).view(entry["shape"])
        for name, entry in header.items()
    }


@cache
def _files(device: str) -> SharedFiles:
    """Hand-overs that this process has mapped."""
    return SharedFiles(lock=device == "cuda")


def install() -> None:
    """Puts the manager in the place of vLLM's in this process."""
    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = MappedLoraManager  # pyright: ignore[reportPrivateImportUsage]


def _wait_for_copies(device: str) -> None:
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


def _scale(loras: Collection[Any]) -> None:
    """Multiplies the scaling into each B: vLLM's own loop launches a kernel for each."""
    for scaling in {lora.scaling for lora in loras}:
        scaled = [lora for lora in loras if lora.scaling == scaling]
        _foreach_mul_([lora.lora_b for lora in scaled], scaling)
        for lora in scaled:
            lora.scaling = 1


def _nothing(index: int) -> None:
    """The slot was emptied before."""


def _kind(module: str) -> str:
    """How vLLM names the kind of a layer: by the last part, or from `experts` on."""
    _, experts, rest = module.partition(".experts")
    return f"experts{rest}" if experts else module.rpartition(".")[2]
