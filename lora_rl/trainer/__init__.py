"""The Megatron trainer: many LoRA adapters, each in a slot, over one frozen base.

actor: what may be called remotely. ranks: what processes agree on and add up. slots: who lives where. learner: forward
and backward; batches, plan, packing, pipeline, logprobs, objective are its parts. slot_bank, slot_lora, lora_rows,
slot_experts, expert_dispatch, gradients: the weights. slot_optimizer: one AdamW and clock per slot. model, moe,
attention, flash, pointwise, megatron_compat: the frozen base; topology: the layouts that fit it. memory, offload,
transfer: what lies where. adapter, targets, expert_names: what an adapter is; peft_config, init_adapter: what it takes
from another; all free of torch. states, state_io: train states. peft_io, hand_over: PEFT directories. probe: for the
engine to check.

Only records are exported here, so that importing them brings in no torch.
"""

from lora_rl.trainer.types import AdapterBatch, ExportReply, OptimReply, StepReply

__all__ = ["AdapterBatch", "ExportReply", "OptimReply", "StepReply"]
