"""Rounds of sampling until a batch is full."""

import asyncio
import itertools
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lora_rl.config.algorithm import DynamicSampling
from lora_rl.data.sources import PromptSource
from lora_rl.data.types import Sample
from lora_rl.errors import RewardError
from lora_rl.rewards.metrics import reward_metrics
from lora_rl.rollout.drawing import Drawing
from lora_rl.rollout.groups import Group, informative

Grade = Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
"""Samples to the same samples with rewards."""

logger = logging.getLogger("lora_rl.rollout")


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A full batch."""

    samples: list[Sample]
    """P groups in the order of their prompts, the G samples of a prompt side by side."""
    position: int
    """Data position after the last prompt that was kept or dropped; prompts drawn beyond it come up again."""
    metrics: dict[str, float]


async def collect(
    source: PromptSource, drawing: Drawing, *, position: int, dynamic_sampling: DynamicSampling | None, grade: Grade
) -> Collected:
    """P groups from `position` on. With `dynamic_sampling` they are graded, and those with equal rewards replaced.

    Raises RewardError where `max_rounds` rounds do not fill the batch, and what source, engines and graders raise.
    """
    wanted, tally = drawing.sampling.rollout_batch_size, _Tally(start=position, position=position)
    for _ in range(1 if dynamic_sampling is None else dynamic_sampling.max_rounds):
        batch = await asyncio.to_thread(
            source.take,
            tally.position,
            tally.prompts_to_ask(wanted),
            max_prompt_tokens=drawing.sampling.max_prompt_tokens,
        )
        groups = await tally.timed(drawing.groups(batch.prompts))
        if dynamic_sampling is not None:
            groups = await _graded(groups, grade)
            tally.graded += groups
        for group, after in zip(groups, batch.positions, strict=True):
            good = dynamic_sampling is None or informative(group, dynamic_sampling.min_reward_std)
            (tally.kept if good else tally.dropped).append(group)
            tally.position = after
            if len(tally.kept) == wanted:
                return tally.collected()
        logger.info("batch %s: %d of %d groups after round %d", drawing.batch_id, len(tally.kept), wanted, tally.rounds)
    raise RewardError(_empty_rounds(tally, wanted))


@dataclass(kw_only=True)
class _Tally:
    """What a rollout has drawn so far."""

    start: int
    position: int
    rounds: int = 0
    kept: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)
    graded: list[Group] = field(default_factory=list)
    """Kept, dropped, and those drawn beyond the last that was needed."""
    num_samples: int = 0
    num_tokens: int = 0
    seconds: float = 0.0

    def prompts_to_ask(self, wanted: int) -> int:
        """Twice as many as the share kept so far says are needed, for its noise; at most `wanted`."""
        if not self.kept:
            return wanted
        share_kept = len(self.kept) / (len(self.kept) + len(self.dropped))
        return min(wanted, 2 * math.ceil((wanted - len(self.kept)) / share_kept))

    async def timed(self, drawn: Awaitable[list[Group]]) -> list[Group]:
        started = time.perf_counter()
        groups = await drawn
        self.seconds += time.perf_counter() - started
        self.rounds += 1
        self.num_samples += sum(map(len, groups))
        self.num_tokens += sum(len(sample.response_tokens) for group in groups for sample in group)
        return groups

    def collected(self) -> Collected:
        num_judged = len(self.kept) + len(self.dropped)
        return Collected(
            samples=list(itertools.chain.from_iterable(self.kept)),
            position=self.position,
            metrics={
                "rollout/samples": float(self.num_samples),
                "rollout/rounds": float(self.rounds),
                "rollout/groups_dropped": float(len(self.dropped)),
                "rollout/prompts_left_out": float(self.position - self.start - num_judged),
                "rollout/tokens_per_s": self.num_tokens / self.seconds,
            }
            | self._means_of_all_graded(),
        )

    def _means_of_all_graded(self) -> dict[str, float]:
        """The groups kept all have unequal rewards, so their mean says little of the policy."""
        metrics = reward_metrics(list(itertools.chain.from_iterable(self.graded)))
        return {
            f"drawn/{name.removeprefix('reward/')}": value
            for name, value in metrics.items()
            if name.startswith("reward/") and name.endswith("/mean")
        }


async def _graded(groups: Sequence[Group], grade: Grade) -> list[Group]:
    graded = iter(await grade(list(itertools.chain.from_iterable(groups))))
    return [list(itertools.islice(graded, len(group))) for group in groups]


def _empty_rounds(tally: _Tally, wanted: int) -> str:
    means = Counter(_mean_reward(group) for group in tally.dropped)
    common = ", ".join(f"{count} at {reward}" for reward, count in means.most_common(3))
    return (
        f"algorithm.dynamic_sampling.max_rounds: {tally.rounds} rounds over {len(tally.kept) + len(tally.dropped)} "
        f"prompts gave {len(tally.kept)} groups whose rewards differ, and sampling.rollout_batch_size wants {wanted} "
        f"(equal rewards: {common}); give tasks that the model solves now and then, check the reward, or raise "
        "max_rounds"
    )


def _mean_reward(group: Group) -> str:
    rewards = [sample.reward for sample in group if sample.reward is not None]
    return f"{statistics.fmean(rewards):g}" if rewards else "no reward"
