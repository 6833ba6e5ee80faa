"""Configuration: one pydantic class per concern, free of torch, complete and checked before anything is allocated.

run.py holds the whole (`RunConfig`), the rules between sections, and what a resumed run may change; changes.py compares
values; load.py reads YAML; the rest is a file per section.
"""

from lora_rl.config.adapter import AdapterConfig, OptimizerConfig
from lora_rl.config.algorithm import AlgorithmConfig
from lora_rl.config.changes import differences
from lora_rl.config.data import DataConfig, FileData, HubData, ReasoningGymData, SamplingConfig
from lora_rl.config.deadlines import DeadlineConfig
from lora_rl.config.engine import EngineConfig
from lora_rl.config.load import check_config, load_config
from lora_rl.config.model import ModelConfig
from lora_rl.config.placement import PlacementConfig
from lora_rl.config.reward import RewardConfig, RewardTerm
from lora_rl.config.run import RunConfig
from lora_rl.config.store import StoreConfig
from lora_rl.config.trainer import TrainerConfig

__all__ = [
    "AdapterConfig",
    "AlgorithmConfig",
    "DataConfig",
    "DeadlineConfig",
    "EngineConfig",
    "FileData",
    "HubData",
    "ModelConfig",
    "OptimizerConfig",
    "PlacementConfig",
    "ReasoningGymData",
    "RewardConfig",
    "RewardTerm",
    "RunConfig",
    "SamplingConfig",
    "StoreConfig",
    "TrainerConfig",
    "check_config",
    "differences",
    "load_config",
]
