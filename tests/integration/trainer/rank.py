"""One rank of trainers in a process of its own: for each line `PLAN RANK` on its input, a line with the reply.

The file PLAN is JSON: model, store, layout (fields of TrainerConfig), rendezvous, dropout, algorithm, steps (samples'
refs), start (a state's ref, or null for a fresh one).
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.store import BlobRef
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.types import AdapterBatch


def run(plan: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train by the plan, export, and take the gradient of one more batch."""
    layout = TrainerConfig(max_tokens_per_gpu=64, **plan["layout"])
    trainer = TrainerActor(
        model_path=plan["model"], dtype="float32", trainer=layout, rank=rank, world_size=layout.world_size
    )
    trainer.start(plan["rendezvous"])
    try:
        return _train(trainer, plan)
    finally:
        trainer.shutdown()


def _train(trainer: TrainerActor, plan: dict[str, Any]) -> dict[str, Any]:
    adapter = AdapterConfig(rank=4, alpha=8, optimizer=OptimizerConfig(lr=1e-2, clip_grad_norm=0.05), **plan["adapter"])
    store = StoreConfig(uri=plan["store"])
    common: dict[str, Any] = {
        "adapter": adapter,
        "algorithm": AlgorithmConfig(max_mismatch=None, entropy_coefficient=0.01, **plan["algorithm"]),
        "sampling": SamplingConfig(),
    }
    if plan["start"] is None:
        states = [trainer.new_state(store=store, adapter=adapter, seed=0)]
    else:
        states = [BlobRef.from_json(plan["start"])]
    trainer.load_state(store=store, adapter=adapter, state=states[0])
    saved = trainer.save_state(store=store, adapter=adapter)
    steps = [BlobRef.from_json(samples) for samples in plan["steps"]]
    replies = []
    for samples in steps:
        replies.append(trainer.train_step(store=store, start=states[-1], samples=samples, seed=0, **common))
        states.append(replies[-1].state)
    export = trainer.export_adapter(store=store, adapter=adapter, state=states[-1], version=1, base_model_name="base")
    # Twice: gradients of several calls add up.
    for _ in range(2):
        for samples in steps[:1]:
            batch = AdapterBatch(start=states[-1], samples=samples, **common)
            trainer.forward_backward(store=store, batches=[batch], seed=0)
    return {
        "saved": saved.to_json(),
        "states": [state.to_json() for state in states],
        "stepped": [reply.stepped for reply in replies],
        "metrics": [_without_time(reply.metrics) for reply in replies],
        "adapter": export.adapter.to_json(),
        "gradients": _gradients(trainer, adapter.name),
        "copied": _copied(trainer, adapter.name),
    }


def _gradients(trainer: TrainerActor, name: str) -> Any:
    tenant = trainer._table.find(name)
    return {
        p.name: trainer._bank.gathered(p.value.grad, p.split_dim, of_experts=p.of_experts).tolist()
        for p in tenant.optimizer.parameters
        if p.value.grad is not None
    }


def _copied(trainer: TrainerActor, name: str) -> int:
    """Tensors that this rank copies to the host when a state is saved."""
    state = trainer._table.snapshot(trainer._table.find(name))
    return len(state.weights) + sum(map(len, state.moments.values()))


def _without_time(metrics: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("time", "memory")) and not name.endswith("_per_s")
    }


if __name__ == "__main__":
    for line in sys.stdin:
        path, rank = line.split()
        try:
            reply = run(json.loads(Path(path).read_text()), int(rank))
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), flush=True)
