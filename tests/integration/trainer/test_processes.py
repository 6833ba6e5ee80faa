"""Trainers in processes of their own: tensor parallelism, and a run that goes on elsewhere."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lora_rl.config import StoreConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.models.tiny import make_tiny_llama, make_tiny_qwen2, make_tiny_qwen3
from lora_rl.store import BlobRef, open_store
from lora_rl.trainer.state_io import decode_state
from tests.builders import make_training_samples
from tests.tolerances import EXACT, PARITY

pytestmark = [pytest.mark.integration]

ROOT = Path(__file__).parents[3]
MAKERS = {"qwen3": make_tiny_qwen3, "qwen2": make_tiny_qwen2, "llama": make_tiny_llama}
DEADLINE_S = 240


class Workplace:
    """Models, a store with three batches, and trainers in processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.uri = str(folder / "store")
        self.store = open_store(StoreConfig(uri=self.uri))
        self.batches = [
            self.store.put_blob("samples", write_samples(make_training_samples(seed=seed))).to_json()
            for seed in range(3)
        ]
        self.num_runs = 0

    def model(self, family: str) -> Path:
        path = self.folder / family
        return path if path.exists() else MAKERS[family](path, tie_embeddings=family != "llama")

    def train(self, *, tp: int, family: str = "qwen3", **options: Any) -> list[dict[str, Any]]:
        """Replies of all ranks."""
        self.num_runs += 1
        name = f"run{self.num_runs}"
        plan = {
            "model": str(self.model(family)),
            "store": self.uri,
            "world_size": tp,
            "rendezvous": (self.folder / f"{name}.meet").as_uri() if tp > 1 else None,
            "start": None,
            "steps": self.batches,
            "dropout": 0.0,
            "recompute": False,
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(plan | options))
        command = [sys.executable, "-m", "tests.integration.trainer.rank", str(path)]
        ranks = [
            subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(tp)
        ]
        try:
            outputs = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, (_, errors) in zip(ranks, outputs, strict=True):
            assert rank.returncode == 0, errors[-3000:]
        return [json.loads(output) for output, _ in outputs]

    def weights(self, reply: dict[str, Any], step: int = -1) -> dict[str, torch.Tensor]:
        ref = BlobRef.from_json(reply["states"][step])
        return dict(decode_state(self.store.get_blob(ref), ref.key).weights)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def one(workplace: Workplace) -> dict[str, Any]:
    """Three steps on one rank."""
    return workplace.train(tp=1)[0]


@pytest.fixture(scope="module")
def two(workplace: Workplace) -> list[dict[str, Any]]:
    """The same on two ranks."""
    return workplace.train(tp=2)


def _largest_gap(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert ours.keys() == theirs.keys()
    return max((torch.as_tensor(ours[name]) - torch.as_tensor(theirs[name])).abs().max().item() for name in ours)


def test_a_fresh_process_makes_the_same_bytes(workplace, one):
    assert workplace.train(tp=1)[0]["states"] == one["states"]


def test_a_run_that_goes_on_in_a_fresh_process_ends_with_the_same_bytes(workplace, one):
    first = workplace.train(tp=1, steps=workplace.batches[:1])[0]
    rest = workplace.train(tp=1, steps=workplace.batches[1:], start=first["states"][-1])[0]
    assert rest["states"][-1] == one["states"][-1]


def test_two_ranks_reply_alike(two):
    for name in ("states", "adapter", "gradients"):
        assert two[0][name] == two[1][name]


def test_two_ranks_start_from_the_very_weights_of_one(one, two):
    assert two[0]["states"][0] == one["states"][0]


def test_two_ranks_have_the_outputs_gradients_and_weights_of_one(workplace, one, two):
    for ours, theirs in zip(two[0]["metrics"], one["metrics"], strict=True):
        for name in ("loss/total", "policy/entropy/mean", "mismatch/logp_abs/mean", "policy/grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], abs=PARITY), name
    assert max(torch.tensor(gradient).abs().max().item() for gradient in one["gradients"].values()) > 0.01
    assert _largest_gap(two[0]["gradients"], one["gradients"]) < PARITY
    assert _largest_gap(workplace.weights(two[0], 1), workplace.weights(one, 1)) < PARITY * 10


def test_probes_of_one_and_two_ranks_agree(workplace, one, two):
    probes = [
        json.loads(workplace.store.get_blob(BlobRef.from_json(reply["adapter"]["probe"]))) for reply in (one, two[0])
    ]
    logp = [dict(zip(probe["token_ids"], probe["logp"], strict=True)) for probe in probes]
    shared = logp[0].keys() & logp[1].keys()
    assert len(shared) >= 15
    # Three Adam steps amplify rounding; the outputs stay together.
    assert max(abs(logp[0][token] - logp[1][token]) for token in shared) < 1e-3


def test_a_state_of_two_ranks_goes_on_at_one_and_comes_back_exactly(workplace, two):
    alone = workplace.train(tp=1, start=two[0]["states"][-1], steps=workplace.batches[:1])[0]
    assert _largest_gap(workplace.weights(alone, 0), workplace.weights(two[0])) == EXACT
    pair = workplace.train(tp=2, start=two[0]["states"][-1], steps=workplace.batches[:1])[0]
    assert _largest_gap(workplace.weights(alone), workplace.weights(pair)) < PARITY * 10


def test_dropout_and_recompute_are_the_same_on_two_ranks(workplace):
    options = {"dropout": 0.2, "recompute": True, "steps": workplace.batches[:1]}
    one, two = (workplace.train(tp=tp, **options)[0] for tp in (1, 2))
    assert _largest_gap(two["gradients"], one["gradients"]) < PARITY


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_other_families_are_the_same_on_two_ranks(workplace, family):
    options = {"family": family, "steps": workplace.batches[:1]}
    one, two = (workplace.train(tp=tp, **options)[0] for tp in (1, 2))
    assert _largest_gap(two["gradients"], one["gradients"]) < PARITY
