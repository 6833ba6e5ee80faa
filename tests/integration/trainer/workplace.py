"""Trainers whose ranks are processes of their own, over one store."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lora_rl.config import StoreConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.models.tiny import make_tiny_llama, make_tiny_qwen2, make_tiny_qwen3, make_tiny_qwen3_moe
from lora_rl.store import BlobRef, open_store
from lora_rl.trainer.state_io import decode_state
from tests.builders import make_training_samples

ROOT = Path(__file__).parents[3]
MAKERS = {
    "qwen3": make_tiny_qwen3,
    "qwen3_moe": make_tiny_qwen3_moe,
    "qwen2": make_tiny_qwen2,
    "llama": make_tiny_llama,
}
DEADLINE_S = 600


class Rank:
    """A process that runs one rank of a trainer after the other."""

    def __init__(self, log: Path, gpu: int):
        """Where there are GPUs, it sees but that one."""
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.trainer.rank"],
                cwd=ROOT,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def begin(self, plan: Path, rank: int) -> None:
        self.process.stdin.write(f"{plan} {rank}\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """Of the plan begun last; `error` where it failed."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"the rank died: {self._log.read_text()[-3000:]}"}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Workplace:
    """Models, a store with three batches, and processes for ranks."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.uri = str(folder / "store")
        self.store = open_store(StoreConfig(uri=self.uri))
        self.batches = [self.put(make_training_samples(seed=seed)) for seed in range(3)]
        self._ranks: list[Rank] = []
        self._num_runs = 0

    def put(self, samples: Sequence[Any]) -> Any:
        """The ref of a batch."""
        return self.store.put_blob("samples", write_samples(samples)).to_json()

    def model(self, family: str) -> Path:
        path = self.folder / family
        return path if path.exists() else MAKERS[family](path, tie_embeddings=family != "llama")

    def train(
        self, *, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1, family: str = "qwen3", **options: Any
    ) -> list[dict[str, Any]]:
        """Replies of all ranks. Processes are used again."""
        num_ranks = tp * pp * dp
        # NCCL refuses two ranks on one GPU.
        if 0 < (gpus := torch.cuda.device_count()) < num_ranks:
            pytest.skip(f"{num_ranks} ranks on {gpus} GPUs")
        self._num_runs += 1
        name = f"run{self._num_runs}"
        plan = {
            "model": str(self.model(family)),
            "store": self.uri,
            "layout": {
                "tensor_parallel": tp,
                "pipeline_parallel": pp,
                "data_parallel": dp,
                "expert_parallel": ep,
                "recompute": options.pop("recompute", False),
            },
            "rendezvous": (self.folder / f"{name}.meet").as_uri() if num_ranks > 1 else None,
            "start": None,
            "steps": self.batches,
            "adapter": {},
            "algorithm": {},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(plan | options))
        while len(self._ranks) < num_ranks:
            self._ranks.append(Rank(self.folder / f"rank{len(self._ranks)}.log", gpu=len(self._ranks)))
        ranks = self._ranks[:num_ranks]
        for number, rank in enumerate(ranks):
            rank.begin(path, number)
        # A rank that fails may leave others waiting in a collective.
        too_late = threading.Timer(DEADLINE_S, self.end)
        too_late.start()
        try:
            replies = [rank.reply() for rank in ranks]
        finally:
            too_late.cancel()
        errors = [reply["error"] for reply in replies if "error" in reply]
        if errors:
            self.end()
        assert not errors, "\n".join(errors)
        # Rank 0 alone writes states.
        assert [reply.pop("copied") > 0 for reply in replies] == [number == 0 for number in range(num_ranks)]
        return replies

    def end(self) -> None:
        """End all processes; the next run starts its own."""
        while self._ranks:
            self._ranks.pop().kill()

    def weights(self, reply: dict[str, Any], step: int = -1) -> dict[str, torch.Tensor]:
        ref = BlobRef.from_json(reply["states"][step])
        return dict(decode_state(self.store.get_blob(ref), ref.key).weights)
