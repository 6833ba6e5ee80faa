"""Records for tests: complete, valid, and different only in what a test names."""

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lora_rl.config import RunConfig, check_config
from lora_rl.data.types import FinishReason, Sample
from lora_rl.store import AdapterRef, ArtifactStore, BlobRef, StepRecord


def make_run_config(**fields: Any) -> RunConfig:
    """The least that is a config of a run; `fields` replace its own."""
    values = {"iterations": 3, "model": {"name": "m"}, "data": {"uri": "x.jsonl"}}
    values |= fields
    values["data"] = {"type": "file"} | values["data"]
    return check_config(values)


def make_sample(**fields: Any) -> Sample:
    """An ungraded sample of two response tokens; `fields` replace its own."""
    values: dict[str, Any] = {
        "id": "0/0/0",
        "prompt_id": "0/0",
        "prompt_text": "2 + 2 = ",
        "prompt_tokens": [10, 11, 12],
        "response_text": "4",
        "response_tokens": [13, 2],
        "logp_rollout": [-0.1, -0.25],
        "finish_reason": FinishReason.STOP,
        "adapter_version": "default@1",
        "adapter_digest": "d" * 64,
        "label": "4",
    }
    return Sample(**values | fields)


def make_group(prompt_id: str, rewards_G: list[float | None], **fields: Any) -> list[Sample]:
    """One prompt's samples, a reward each."""
    return [
        make_sample(id=f"{prompt_id}/{index}", prompt_id=prompt_id, reward=reward, **fields)
        for index, reward in enumerate(rewards_G)
    ]


def make_adapter(store: ArtifactStore, version: int = 1, **fields: Any) -> AdapterRef:
    """An exported adapter whose three blobs are in `store`; weights differ by version."""
    values: dict[str, Any] = {
        "name": "default",
        "version": version,
        "weights": store.put_blob("adapter_weights", f"weights of version {version}".encode()),
        "config": store.put_blob("adapter_config", b'{"peft_type":"LORA"}'),
        "probe": store.put_blob("probe", b"{}"),
    }
    return AdapterRef(**values | fields)


def make_step_record(store: ArtifactStore, **fields: Any) -> StepRecord:
    """A rollout's record. Its only output is put in `store`, unless `fields` have other outputs."""
    outputs = fields.pop("outputs", None) or {"samples": store.put_blob("samples", b"samples").to_json()}
    values: dict[str, Any] = {
        "step": "rollout",
        "fingerprint": "f" * 64,
        "inputs": {"adapter": "a" * 64},
        "outputs": outputs,
        "metrics": {"reward/total/mean": 0.5},
        "values": {"position": 16},
        "started": "2026-11-29T18:00:00.000+00:00",
        "seconds": 1.5,
        "attempt": 1,
        "versions": {"lora-rl": "0.1.0"},
    }
    return StepRecord(**values | fields)


def make_adapter_ref(name: str, version: int, *, weights: str = "weights", config: str = "config") -> AdapterRef:
    """An adapter version without bytes behind it; `weights` and `config` stand for the contents."""
    blobs = {
        file: BlobRef(key=f"cas/{file}/{text}", sha256=hashlib.sha256(text.encode()).hexdigest(), size=len(text))
        for file, text in (("weights", weights), ("config", config), ("probe", "probe"))
    }
    return AdapterRef(name=name, version=version, **blobs)


def make_peft_directory(
    directory: Path, modules: Iterable[str] | None = None, *, width: int = 64, **config: Any
) -> Path:
    """A PEFT directory of zeros; by default of q_proj and down_proj in two layers. `config` replaces its fields."""
    import safetensors.torch
    import torch

    if modules is None:
        modules = [f"model.layers.{layer}.{name}" for layer in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")]
    fields = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj", "down_proj"]}
    names = [f"base_model.model.{module}.lora_{letter}.weight" for module in modules for letter in "AB"]
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: torch.zeros(2, width) if "lora_A" in name else torch.zeros(width, 2) for name in names}
    (directory / "adapter_model.safetensors").write_bytes(safetensors.torch.save(weights))
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    return directory


def make_training_samples(
    *, prompts: int = 3, group: int = 4, vocab: int = 512, seed: int = 0, longest: int = 12
) -> list[Sample]:
    """Graded random samples: groups of one prompt, lengths 1 to `longest`, rewards that differ within each group."""
    draw = random.Random(seed)
    samples = []
    for prompt in range(prompts):
        prompt_tokens = [draw.randrange(vocab) for _ in range(draw.randint(3, longest))]
        for index in range(group):
            response = [draw.randrange(vocab) for _ in range(draw.randint(1, longest))]
            samples.append(
                make_sample(
                    id=f"0/{prompt}/{index}",
                    prompt_id=f"0/{prompt}",
                    prompt_tokens=prompt_tokens,
                    response_tokens=response,
                    logp_rollout=[-6.2 + 0.3 * draw.random() for _ in response],
                    reward=float(index % 2) + 0.1 * draw.random(),
                )
            )
    return samples
