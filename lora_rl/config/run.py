"""The whole config of a run, and the rules between its sections."""

import hashlib
import json
from typing import Any

from pydantic import Field

from lora_rl.config.adapter import AdapterConfig, Name
from lora_rl.config.algorithm import AlgorithmConfig
from lora_rl.config.base import Section
from lora_rl.config.changes import differences, without
from lora_rl.config.data import DataConfig, SamplingConfig
from lora_rl.config.deadlines import DeadlineConfig
from lora_rl.config.engine import EngineConfig
from lora_rl.config.model import ModelConfig
from lora_rl.config.placement import PlacementConfig
from lora_rl.config.reward import RewardConfig
from lora_rl.config.store import StoreConfig
from lora_rl.config.trainer import TrainerConfig

ENGINE_MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes as `max_lora_rank`."""

COLOCATED_MAX_UTILIZATION = 0.9
"""Share of a GPU that an engine can take where an offloaded trainer keeps its CUDA context and NCCL's buffers."""

HOW_IT_IS_EXECUTED = (
    "deadlines",
    "placement",
    "trainer",
    "engine",
    "reward.workers",
    "reward.deadline_s",
    "algorithm.max_mismatch",
    "algorithm.dynamic_sampling.max_rounds",
)
"""Fields and sections that a resumed run takes as last given. They alter how much time and memory a run takes, where it
gives up, and at most how its sums are rounded."""

SAME_BITS = ("trainer.recompute", "trainer.max_skipped_steps", "engine.probe_tolerance")
"""Fields of trainer and engine that leave every bit of a result on a CPU; any other may round it differently."""

NOT_PART_OF_THE_RESULT = ("run_name", "iterations", "store", *HOW_IT_IS_EXECUTED)
"""Fields and sections that may differ when a run is resumed: they do not decide what an iteration computes."""


class RunConfig(Section):
    """One RL run: which model, which adapter, which prompts, which reward, and how to learn."""

    run_name: Name | None = None
    """Name in the store; null takes the config file's name."""

    seed: int = Field(default=0, ge=0)
    """Fixes the adapter's start, the order of prompts and every sampled token."""

    iterations: int = Field(gt=0)
    """Iterations of rollout, reward, train step, export and hot load. May be raised later to go on."""

    model: ModelConfig
    data: DataConfig
    adapter: AdapterConfig = AdapterConfig()
    sampling: SamplingConfig = SamplingConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    store: StoreConfig = Field(default_factory=StoreConfig)

    @property
    def deciding(self) -> dict[str, Any]:
        """The fields that decide the run's result, by section, as JSON."""
        place = () if self.data.digest is None else ("data.uri", "data.path")
        return without(self.model_dump(mode="json"), (*NOT_PART_OF_THE_RESULT, *place))

    @property
    def sha256(self) -> str:
        """Digest of everything that decides the run's result."""
        return hashlib.sha256(json.dumps(self.deciding, sort_keys=True).encode()).hexdigest()

    @property
    def engine_max_rank(self) -> int:
        """Smallest rank limit of the engine that holds `trainer.max_rank`."""
        return next(rank for rank in ENGINE_MAX_RANKS if rank >= self.trainer.max_rank)


def faults_between_sections(config: RunConfig) -> list[str]:
    """Every rule between fields that `config` breaks, as `field: value, rule; mend`."""
    faults = []
    adapter, sampling, algorithm = config.adapter, config.sampling, config.algorithm
    if config.trainer.max_rank > ENGINE_MAX_RANKS[-1]:
        faults.append(
            f"trainer.max_rank: {config.trainer.max_rank} exceeds {ENGINE_MAX_RANKS[-1]}, vLLM's limit; lower it"
        )
    if adapter.rank > config.trainer.max_rank and "rank" not in adapter.left_to_init:
        faults.append(
            f"adapter.rank: {adapter.rank} exceeds trainer.max_rank {config.trainer.max_rank}; "
            "lower it or raise trainer.max_rank"
        )
    if config.trainer.data_parallel % config.trainer.expert_parallel:
        faults.append(
            f"trainer.expert_parallel: {config.trainer.expert_parallel} does not divide trainer.data_parallel "
            f"{config.trainer.data_parallel}; lower it or raise data_parallel"
        )
    schedule = adapter.optimizer
    if schedule.schedule != "constant" and schedule.decay_samples is None:
        faults.append(
            f"adapter.optimizer.decay_samples: not set, but schedule {schedule.schedule} needs it; "
            "give the samples after which the rate is lowest"
        )
    if schedule.decay_samples is not None and schedule.decay_samples <= schedule.warmup_samples:
        faults.append(
            f"adapter.optimizer.decay_samples: {schedule.decay_samples} is not above "
            f"warmup_samples {schedule.warmup_samples}; raise it"
        )
    faults += _algorithm_faults(algorithm, sampling)
    if config.engine.cuda_graph_sizes and config.engine.enforce_eager:
        faults.append(
            f"engine.cuda_graph_sizes: {list(config.engine.cuda_graph_sizes)} are never used under "
            "engine.enforce_eager; set that to false or leave them out"
        )
    longest = sampling.max_prompt_tokens + sampling.max_response_tokens
    if longest > config.engine.max_model_len:
        faults.append(
            f"engine.max_model_len: {config.engine.max_model_len} is below max_prompt_tokens + max_response_tokens "
            f"= {longest}; raise it or lower those"
        )
    if longest > config.trainer.max_tokens_per_gpu:
        faults.append(
            f"trainer.max_tokens_per_gpu: {config.trainer.max_tokens_per_gpu} is below the longest sample, "
            f"max_prompt_tokens + max_response_tokens = {longest}; raise it or lower those"
        )
    if config.placement.mode == "colocated" and config.engine.gpu_memory_utilization > COLOCATED_MAX_UTILIZATION:
        faults.append(
            f"engine.gpu_memory_utilization: {config.engine.gpu_memory_utilization:g} exceeds "
            f"{COLOCATED_MAX_UTILIZATION:g}, the most beside a colocated trainer, whose CUDA context stays on the GPU; "
            "lower it, or set placement.mode to disaggregated"
        )
    return faults


def _algorithm_faults(algorithm: AlgorithmConfig, sampling: SamplingConfig) -> list[str]:
    faults = []
    groups_needed = algorithm.advantage.type in ("grpo", "rloo") or algorithm.dynamic_sampling is not None
    if groups_needed and sampling.n_samples_per_prompt < 2:
        faults.append(
            f"sampling.n_samples_per_prompt: {sampling.n_samples_per_prompt} gives every sample a zero advantage "
            f"with {algorithm.advantage.type}; use 2 or more"
        )
    # A resolved config, which says every default, must load again.
    tis_asked_for = algorithm.tis_clip not in (None, AlgorithmConfig().tis_clip)
    if tis_asked_for and algorithm.old_logp == "rollout":
        faults.append(
            f"algorithm.tis_clip: {algorithm.tis_clip:g} has no effect with old_logp rollout, where both policies are "
            "the engine's; set algorithm.old_logp to recompute, or leave it out"
        )
    if algorithm.kl is not None and (algorithm.kl.estimator, algorithm.kl.where) == ("k1", "loss"):
        faults.append(
            "algorithm.kl.estimator: k1 in the loss has a gradient of zero on average; use k2, k3 or low_var_kl, or "
            "set algorithm.kl.where to reward"
        )
    return faults


def changes_of_result(config: RunConfig, before: RunConfig) -> list[str]:
    """Each field that decides the result and is not what it was, as `field: before -> now`.

    Rows whose digest is not known are the same if they lie in the same place.
    """
    if config.data.digest is None or before.data.digest is None:
        config, before = _undigested(config), _undigested(before)
    return differences(config.deciding, before.deciding)


def _undigested(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"digest": None})})


def changes_of_rounding(config: RunConfig, before: RunConfig) -> list[str]:
    """Each field that may change the last bits of the results to come, as `field: before -> now`."""
    sections = {"trainer", "engine"}
    return differences(
        without(config.model_dump(mode="json", include=sections), SAME_BITS),
        without(before.model_dump(mode="json", include=sections), SAME_BITS),
    )
