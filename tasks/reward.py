"""Scores of the samples."""

from prefect.client.schemas.objects import State

from lora_rl.cluster import roles
from lora_rl.store import StepRecord
from tasks.context import SESSION, Iteration
from tasks.step import StepResult, logs_of, run_step, step


@step("reward")
async def reward(at: Iteration, samples: StepRecord) -> State | StepRecord:
    """Grades each sample in worker processes; a grader that hangs or raises is counted and never stalls the batch."""
    config = at.config
    blob = samples.output("samples")

    async def body() -> StepResult:
        rollouter = await roles.rollouter(config, at.model_path)
        async with logs_of(rollouter):
            reply = await rollouter.call_first(
                "grade",
                deadline_s=config.deadlines.reward_s,
                store=at.store,
                samples=blob,
                reward=config.reward,
                session=SESSION,
            )
        return StepResult(outputs={"samples": reply.samples}, metrics=reply.metrics, values={"preview": reply.preview})

    return await run_step(
        at,
        "reward",
        inputs={"samples": blob.sha256},
        config={"reward": config.deciding["reward"]},
        body=body,
    )
