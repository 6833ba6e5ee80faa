"""What vLLM's workers can do for us beyond their own methods."""

import logging
from typing import TYPE_CHECKING, Any, cast

from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase

logger = logging.getLogger("lora_rl.engine")


class LoadsAdapters:
    """A base class of vLLM's worker (`worker_extension_cls`)."""

    def load_adapter(self, label: str, lora_id: int, directory: str) -> str | None:
        """Loads it in this rank; why not, where it cannot be.

        Returned, not raised: vLLM stops listening at the first rank that fails, and takes what the others answer for
        their answers to its next call.
        """
        worker = cast("WorkerBase", cast(Any, self))
        try:
            loaded = worker.add_lora(LoRARequest(label, lora_id, directory))
        except Exception as error:  # of any kind: the file is read here
            logger.exception("%s: not loaded", label)
            return f"{type(error).__name__}: {error}"
        return None if loaded else "it was there already"
