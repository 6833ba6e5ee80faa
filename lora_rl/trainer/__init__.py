"""The Megatron trainer: many LoRA adapters, each in a slot, over one frozen base.

actor: what may be called remotely. ranks: what tensor-parallel ranks agree on. slots: who lives where. learner: forward
and backward; packing, logprobs, objective are its parts. slot_bank, slot_lora, lora_rows: the weights.
slot_optimizer: one AdamW and clock per slot. model, attention, megatron_compat: the frozen base. adapter, targets: what
an adapter is; peft_config, init_adapter: what it takes from another; all free of torch. states, state_io: train states.
peft_io: PEFT directories. probe: for the engine to check.

Only records are exported here, so that importing them brings in no torch.
"""

from lora_rl.trainer.types import AdapterBatch, ExportReply, OptimReply, StepReply

__all__ = ["AdapterBatch", "ExportReply", "OptimReply", "StepReply"]
