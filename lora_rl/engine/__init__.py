"""The rollout engine on vLLM. Importing this package brings in neither vllm nor torch.

actor.py        what others call
versions.py     which adapter versions are loaded, and which must go
adapter_files.py  reads and checks an exported adapter; probe.py compares engine and trainer
serving.py      requests and adapters in vLLM's terms; vllm_client.py starts vLLM and runs one batch at a time
environment.py  what vLLM reads from the environment; kv_cache.py, what a request takes of its cache
plugin.py       what vLLM's processes load: mapped_loras.py, how adapters get in, lora_ops.py, fast CPU arithmetic
worker.py       what vLLM's ranks can do for us
orphans.py      ties vLLM's processes to their parent; shared_memory.py, their memory to them
scheduler.py    ends answers at stop_texts.py's texts, inside vLLM
"""

from lora_rl.engine.types import Completion, GenerateRequest, Probe, PublishOutcome, PublishReply

__all__ = ["Completion", "GenerateRequest", "Probe", "PublishOutcome", "PublishReply"]
