"""Tiny models and the process group, once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lora_rl.models.tiny import make_tiny_qwen3, make_tiny_qwen3_moe
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.learner import Learner
from lora_rl.trainer.megatron_compat import init_distributed
from lora_rl.trainer.model import FrozenModel, build_model
from lora_rl.trainer.slot_bank import SlotBank
from tests.unit.trainer.actor_run import Run, started_trainer


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random two-layer Qwen3, float32, vocabulary 512."""
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="session")
def tiny_qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_qwen3`, a Qwen3-MoE of eight experts."""
    return make_tiny_qwen3_moe(tmp_path_factory.mktemp("models") / "qwen3_moe")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device, with this process as the only rank."""
    torch.set_num_threads(1)
    return init_distributed(0, 1)


@pytest.fixture(scope="session")
def model(tiny_qwen3: Path, device: torch.device) -> FrozenModel:
    return build_model(tiny_qwen3, dtype="float32", device=device)


@pytest.fixture(scope="session")
def moe_model(tiny_qwen3_moe: Path, device: torch.device) -> FrozenModel:
    return build_model(tiny_qwen3_moe, dtype="float32", device=device)


@pytest.fixture(scope="session")
def session_bank(model: FrozenModel) -> SlotBank:
    return SlotBank(model)


@pytest.fixture
def bank(session_bank: SlotBank) -> Iterator[SlotBank]:
    """The model's slots, empty before and after."""
    yield session_bank
    for slot in range(8):
        session_bank.clear(slot)


@pytest.fixture(scope="session")
def session_moe_bank(moe_model: FrozenModel) -> SlotBank:
    return SlotBank(moe_model)


@pytest.fixture
def moe_bank(session_moe_bank: SlotBank) -> Iterator[SlotBank]:
    """The slots of the model with experts, empty before and after."""
    yield session_moe_bank
    for slot in range(8):
        session_moe_bank.clear(slot)


@pytest.fixture
def make_learner(model: FrozenModel, bank: SlotBank) -> Callable[[int], Learner]:
    """A learner with a token budget."""
    return lambda max_tokens=4096: Learner(model, bank, max_tokens=max_tokens)


@pytest.fixture(scope="session")
def trainer(tiny_qwen3: Path, device: torch.device) -> TrainerActor:
    """Of one rank on `tiny_qwen3`, with two slots."""
    return started_trainer(tiny_qwen3, device)


@pytest.fixture
def run(trainer: TrainerActor, tmp_path: Path) -> Run:
    """`trainer` with an empty store."""
    return Run(trainer, str(tmp_path / "store"))
