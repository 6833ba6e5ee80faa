"""Samples drawn under the current adapter."""

from prefect.client.schemas.objects import State

from lora_rl.cluster import roles
from lora_rl.store import StepRecord
from tasks.context import SESSION, Iteration
from tasks.hot_load import serve
from tasks.step import StepResult, logs_of, run_step, step


@step("rollout")
async def rollout(at: Iteration) -> State | StepRecord:
    """Draws rollout_batch_size prompts from the data position and n_samples_per_prompt answers to each."""
    config, deciding = at.config, at.config.deciding
    dynamic_sampling = config.algorithm.dynamic_sampling

    async def body() -> StepResult:
        engines, _ = await serve(at, at.adapter)
        rollouter = await roles.rollouter(config, at.model_path)
        async with logs_of(rollouter):
            reply = await rollouter.call_first(
                "rollout",
                deadline_s=config.deadlines.rollout_s,
                engines=engines.handles,
                engine_deadline_s=config.deadlines.rollout_s,
                store=at.store,
                data=config.data,
                sampling=config.sampling,
                seed=config.seed,
                position=at.position,
                adapter=at.adapter,
                reward=config.reward,
                dynamic_sampling=dynamic_sampling,
                batch_id=f"{at.run}/it{at.n}",
                session=SESSION,
            )
        return StepResult(
            outputs={"samples": reply.samples},
            metrics=reply.metrics | engines.seconds,
            values={"position": reply.position},
        )

    return await run_step(
        at,
        "rollout",
        inputs={"adapter": at.adapter.digest, "position": str(at.position)},
        config={
            "model": deciding["model"],
            "data": deciding["data"],
            "sampling": deciding["sampling"],
            "dynamic_sampling": deciding["algorithm"]["dynamic_sampling"],
            "reward": deciding["reward"] if dynamic_sampling else None,
            "version": at.adapter.label,
        },
        body=body,
    )
