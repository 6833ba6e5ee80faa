"""Does a run learn what it was not shown? Trains with GRPO, and evaluates on held-out prompts while it does.

    python -m benchmarks.learning [--config FILE] [--minutes M] [--out DIR] [field=value ...]

Trainer, engine and graders run in this one process, without Ray and Prefect: the library's own actors, called in turn.
Held-out prompts come from another seed, and none of them is among the run's training prompts. They are answered almost
greedily (temperature 0.01) before the first iteration, every `--every`, and after the last. DIR gets learning.json anew
after each iteration, learning.md, learning.png and the adapter after each evaluation: what ends the run early loses
none of them, and `adapter.init=DIR/adapter` goes on from there with a new optimizer. Ends within `--minutes` of the
process's start, the last evaluation included, or after `iterations`.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import psutil

from benchmarks.report import RESULTS, device_name, facts, table
from lora_rl.config import RunConfig, StoreConfig, load_config
from lora_rl.data.chat import ChatRenderer
from lora_rl.data.sources import open_source
from lora_rl.data.types import Prompt
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import DataError
from lora_rl.models import resolve_model
from lora_rl.rewards import GraderPool, reward_metrics
from lora_rl.rollout.actor import RolloutActor
from lora_rl.rollout.drawing import Drawing
from lora_rl.store import AdapterRef, BlobRef, download_adapter, open_store
from lora_rl.tracking.plots import held_out_png
from lora_rl.trainer.actor import TrainerActor

HELD_OUT_SEED = 20_000
GREEDY = 0.01
"""The lowest temperature that vLLM does not raise."""
END_S = 5.0
"""For the picture, and the end of all processes."""
SHOWN = ("reward/total/mean", "response/tokens/mean", "mismatch/logp_abs/mean", "policy/entropy/mean")
"""Metrics of an iteration that are kept."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Answers to the held-out prompts after a number of iterations."""

    iterations: int
    minutes: float
    """Since the first iteration began, evaluations left out."""
    score: float
    """Share of prompts whose answer the grader finds right."""
    tokens: float
    """Mean length."""


@dataclass
class Curve:
    """What a run shows."""

    score: str
    device: str = field(default_factory=device_name)
    facts: str = field(default_factory=facts)
    iterations: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def write_numbers(self, folder: Path, config: RunConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "device": self.device,
            "config": config.model_dump(mode="json"),
            "score": self.score,
            "iterations": self.iterations,
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
        }
        beside = folder / "learning.json.part"
        beside.write_text(json.dumps(document, indent=1))
        beside.replace(folder / "learning.json")

    def write(self, folder: Path, config: RunConfig) -> None:
        self.write_numbers(folder, config)
        (folder / "learning.md").write_text(f"# Learning\n\n{self.facts}\n\n{self.text(config)}\n")
        if self.iterations:
            (folder / "learning.png").write_bytes(self.picture(config))

    def text(self, config: RunConfig) -> str:
        rows = [
            [str(each.iterations), f"{each.minutes:.1f}", f"**{each.score:.1%}**", f"{each.tokens:.1f}"]
            for each in self.evaluations
        ]
        sampling = config.sampling
        return (
            f"{config.model.name}, rank {config.adapter.rank}, {sampling.rollout_batch_size} prompts of "
            f"{sampling.n_samples_per_prompt} samples an iteration, lr {config.adapter.optimizer.lr:g}. Prompts held "
            f"out of training, answered almost greedily.\n\n"
            + table(["iterations", "minutes of training", f"held out: {self.score}", "tokens an answer"], rows)
        )

    def picture(self, config: RunConfig) -> bytes:
        return held_out_png(
            [each["reward/total/mean"] for each in self.iterations],
            {each.iterations: each.score for each in self.evaluations},
            title=f"{config.model.name}: {config.adapter.name}",
        )


def held_out(config: RunConfig, count: int) -> list[Prompt]:
    """Prompts of another seed, all different, and none that the run may train on."""
    dynamic, renderer = config.algorithm.dynamic_sampling, ChatRenderer(resolve_model(config.model.name))
    rounds = 1 if dynamic is None else dynamic.max_rounds
    number = config.iterations * config.sampling.rollout_batch_size * rounds
    shown = {prompt.text for prompt in _prompts(config, renderer, config.seed, number)}
    kept: dict[str, Prompt] = {}
    for prompt in _prompts(config, renderer, HELD_OUT_SEED, 100 * count):
        if prompt.text not in shown:
            kept.setdefault(prompt.text, prompt)
        if len(kept) == count:
            return list(kept.values())
    raise DataError(
        f"held out: {len(kept)} of {100 * count} prompts are no training prompts, {count} are wanted; "
        "take a task with more prompts, or ask for fewer"
    )


def _prompts(config: RunConfig, renderer: ChatRenderer, seed: int, count: int) -> Iterator[Prompt]:
    source = open_source(config.data, renderer, seed=seed)
    position = 0
    for _ in range(count):
        batch = source.take(position, 1, max_prompt_tokens=config.sampling.max_prompt_tokens)
        position = batch.positions[0]
        yield batch.prompts[0]


class Run:
    """One run's actors, in this process."""

    def __init__(self, config: RunConfig, score: str, folder: Path, engine: EngineActor) -> None:
        """`engine` has the run's model; it stays the caller's to shut down."""
        self._config, self._score, self._engine = config, score, engine
        self._store = StoreConfig(uri=f"file://{folder}")
        model = resolve_model(config.model.name)
        self._trainer = TrainerActor(model_path=model, dtype=config.model.dtype, trainer=config.trainer)
        self._rollouter = RolloutActor(model_path=str(model))
        self._pool = GraderPool(config.reward)
        self._position = 0

    async def start(self) -> None:
        """Both models loaded, and the fresh adapter served."""
        await asyncio.gather(asyncio.to_thread(self._trainer.start), self._engine.start())
        config = self._config
        self._state = self._trainer.new_state(store=self._store, adapter=config.adapter, seed=config.seed)
        self._adapter = await self._publish(self._state, 0)

    async def iterate(self, it: int) -> dict[str, float]:
        """Rollout, reward, train step, export, hot load."""
        config, began = self._config, time.perf_counter()
        drawn = await self._rollouter.rollout(
            engines=[self._engine],
            store=self._store,
            data=config.data,
            sampling=config.sampling,
            seed=config.seed,
            position=self._position,
            adapter=self._adapter,
            reward=config.reward,
            dynamic_sampling=config.algorithm.dynamic_sampling,
            batch_id=f"it{it}",
        )
        graded = await self._rollouter.grade(store=self._store, samples=drawn.samples, reward=config.reward)
        rolled_out = time.perf_counter()
        step = self._trainer.train_step(
            store=self._store,
            adapter=config.adapter,
            start=self._state,
            samples=graded.samples,
            algorithm=config.algorithm,
            sampling=config.sampling,
            seed=config.seed,
        )
        trained = time.perf_counter()
        self._position, self._state = drawn.position, step.state
        self._adapter = await self._publish(step.state, it + 1)
        seconds = {"rollout and reward, s": rolled_out - began, "train step, s": trained - rolled_out}
        seconds["publish, s"] = time.perf_counter() - trained
        metrics = drawn.metrics | graded.metrics | step.metrics
        return {name: metrics[name] for name in SHOWN} | seconds

    async def evaluate(self, prompts: list[Prompt]) -> tuple[float, float]:
        """Mean score and mean length of one answer to each prompt."""
        sampling = self._config.sampling.model_copy(update={"n_samples_per_prompt": 1, "temperature": GREEDY})
        drawing = Drawing(
            engines=[self._engine], adapter=self._adapter, sampling=sampling, seed=HELD_OUT_SEED, batch_id="held-out"
        )
        samples = [sample for group in await drawing.groups(prompts) for sample in group]
        metrics = reward_metrics(await self._pool.grade(samples))
        return metrics[f"reward/{self._score}/mean"], metrics["response/tokens/mean"]

    def save_adapter(self, folder: Path) -> None:
        """Writes what is served as a PEFT directory."""
        download_adapter(open_store(self._store), self._adapter, folder)

    async def shutdown(self) -> None:
        self._pool.close()
        await self._rollouter.shutdown()
        self._trainer.shutdown()

    async def _publish(self, state: BlobRef, version: int) -> AdapterRef:
        exported = self._trainer.export_adapter(
            store=self._store,
            adapter=self._config.adapter,
            state=state,
            version=version,
            base_model_name=self._config.model.name,
        )
        await self._engine.publish(store=self._store, adapter=exported.adapter)
        return exported.adapter


async def learn(
    config: RunConfig, engine: EngineActor, prompts: list[Prompt], out: Path, *, minutes: float, every: int, score: str
) -> list[Evaluation]:
    """Trains for `config.iterations`, or as long as all is done within `minutes`; the evaluations, one before all."""
    # Imports take their seconds too.
    began, curve = time.perf_counter() - (time.time() - psutil.Process().create_time()), Curve(score)
    with TemporaryDirectory(prefix="lora-rl-learning-") as folder:
        run = Run(config, score, Path(folder), engine)
        try:
            await run.start()
            trained_s = evaluation_s = slowest_s = 0.0

            async def evaluate(done: int) -> None:
                nonlocal evaluation_s
                asked = time.perf_counter()
                value, tokens = await run.evaluate(prompts)
                evaluation_s = time.perf_counter() - asked
                curve.evaluations.append(
                    Evaluation(iterations=done, minutes=trained_s / 60, score=value, tokens=tokens)
                )
                took = f"{trained_s:.0f} s of training, {time.perf_counter() - began:.0f} s in all"
                print(f"after {done} iterations, {took}: held out {score} {value:.1%}", flush=True)
                curve.write(out, config)
                run.save_adapter(out / "adapter")

            await evaluate(0)
            for it in range(config.iterations):
                asked = time.perf_counter()
                curve.iterations.append(await run.iterate(it))
                took_s = time.perf_counter() - asked
                trained_s, slowest_s = trained_s + took_s, max(slowest_s, took_s)
                curve.write_numbers(out, config)
                print(it, {name: round(value, 4) for name, value in curve.iterations[-1].items()}, flush=True)
                left_s = 60 * minutes - (time.perf_counter() - began)
                over = left_s < slowest_s + evaluation_s + END_S or it + 1 == config.iterations
                if over or (it + 1) % every == 0:
                    await evaluate(it + 1)
                if over:
                    break
        finally:
            await run.shutdown()
    mean_s = fmean(sum(value for name, value in each.items() if name.endswith(", s")) for each in curve.iterations)
    print(f"{len(curve.iterations)} iterations of {mean_s:.1f} s each\n\n{curve.text(config)}", flush=True)
    return curve.evaluations


async def main(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.changes)
    prompts = held_out(config, arguments.held_out)
    engine = EngineActor(
        model_path=str(resolve_model(config.model.name)),
        dtype=config.model.dtype,
        engine=config.engine,
        max_rank=config.engine_max_rank,
        slots=1,
    )
    minutes, every, score = arguments.minutes, arguments.every, arguments.score
    try:
        await learn(config, engine, prompts, arguments.out, minutes=minutes, every=every, score=score)
    finally:
        await engine.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="examples/h200-smollm2.yaml")
    parser.add_argument("--minutes", type=float, default=8.5, help="of the whole run")
    parser.add_argument("--every", type=int, default=20, help="iterations between evaluations")
    parser.add_argument("--held-out", type=int, default=256, help="prompts")
    parser.add_argument("--score", default="exact", help="the reward term that is reported")
    parser.add_argument("--out", type=Path, default=RESULTS / "learning")
    parser.add_argument("changes", nargs="*", help="field=value")
    asyncio.run(main(parser.parse_args()))
