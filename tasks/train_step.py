"""Advantages, loss and optimizer step."""

from prefect.client.schemas.objects import State

from lora_rl.cluster import roles
from lora_rl.store import StepRecord
from tasks.context import Iteration
from tasks.step import StepResult, logs_of, run_step, step


@step("train_step")
async def train_step(at: Iteration, scored: StepRecord) -> State | StepRecord:
    """One optimizer step of the adapter on the scored samples, from the state this iteration starts with."""
    config = at.config
    blob = scored.output("samples")

    async def body() -> StepResult:
        trainer = await roles.trainer(config, at.model_path)
        async with logs_of(trainer):
            reply = await trainer.call_all(
                "train_step",
                deadline_s=config.deadlines.train_s,
                store=at.store,
                adapter=config.adapter,
                start=at.state,
                samples=blob,
                algorithm=config.algorithm,
                sampling=config.sampling,
                seed=config.seed,
            )
        return StepResult(
            outputs={"state": reply.state}, metrics=reply.metrics | trainer.seconds, values={"stepped": reply.stepped}
        )

    deciding = config.deciding
    return await run_step(
        at,
        "train_step",
        inputs={"state": at.state.sha256, "samples": blob.sha256},
        config={section: deciding[section] for section in ("model", "adapter", "algorithm", "sampling")},
        body=body,
    )
