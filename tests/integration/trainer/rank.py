"""One rank of a trainer in a process of its own: runs the calls of a JSON plan and prints the replies.

Usage: python -m tests.integration.trainer.rank PLAN RANK. The plan: model, store, world_size, rendezvous, seed, alpha,
steps (samples' refs), start (a state's ref, or null for a fresh one), gradients (a path that rank 0 writes, or null).
"""

import json
import sys
from pathlib import Path
from typing import Any

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.store import BlobRef
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.types import AdapterBatch

ALGORITHM = AlgorithmConfig(max_mismatch=None, entropy_coefficient=0.01)


def main(plan: dict[str, Any], rank: int) -> dict[str, Any]:
    world_size = plan["world_size"]
    adapter = AdapterConfig(
        rank=4, alpha=8, dropout=plan["dropout"], optimizer=OptimizerConfig(lr=1e-2, clip_grad_norm=0.05)
    )
    store = StoreConfig(uri=plan["store"])
    trainer = TrainerActor(
        model_path=plan["model"],
        dtype="float32",
        trainer=TrainerConfig(tensor_parallel=world_size, max_tokens_per_gpu=64, recompute=plan["recompute"]),
        rank=rank,
        world_size=world_size,
    )
    trainer.start(plan["rendezvous"])
    if plan["start"] is None:
        state = trainer.new_state(store=store, adapter=adapter, seed=0)
    else:
        state = BlobRef.from_json(plan["start"])
    metrics: list[dict[str, float]] = []
    states = [state]
    for samples in plan["steps"]:
        reply = trainer.train_step(
            store=store,
            adapter=adapter,
            start=states[-1],
            samples=BlobRef.from_json(samples),
            algorithm=ALGORITHM,
            sampling=SamplingConfig(),
            seed=0,
        )
        states.append(reply.state)
        metrics.append(
            {name: value for name, value in reply.metrics.items() if not name.startswith(("time", "memory"))}
        )
    export = trainer.export_adapter(store=store, adapter=adapter, state=states[-1], version=1, base_model_name="base")
    gradients = _gradients(trainer, store, adapter, states[-1], plan["steps"][0])
    trainer.shutdown()
    return {
        "states": [state.to_json() for state in states],
        "metrics": metrics,
        "adapter": export.adapter.to_json(),
        "gradients": gradients,
    }


def _gradients(trainer: TrainerActor, store: StoreConfig, adapter: AdapterConfig, state: BlobRef, samples: Any) -> Any:
    """The whole gradient of one more batch, by parameter."""
    batch = AdapterBatch(
        adapter=adapter,
        start=state,
        samples=BlobRef.from_json(samples),
        algorithm=ALGORITHM,
        sampling=SamplingConfig(),
    )
    trainer.forward_backward(store=store, batches=[batch], seed=0)
    tenant = trainer._table.find(adapter.name)
    return {
        parameter.name: trainer._bank.whole(parameter.value.grad, parameter.split_dim).tolist()
        for parameter in tenant.optimizer.parameters
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))))
