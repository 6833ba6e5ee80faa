"""Adapters as PEFT writes them and probes by transformers: what the engine is measured against, without our trainer."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from lora_rl.config import StoreConfig
from lora_rl.engine import Probe
from lora_rl.store import AdapterRef, open_store

PROBE_PROMPT = [5, 6, 7, 8, 9, 10]
PROBE_TOKENS = 16


class PeftExporter:
    """Exports random adapters of the base model at `model_path` into a store."""

    def __init__(self, model_path: Path, store: StoreConfig) -> None:
        self._model_path = model_path
        self._store = open_store(store)

    def export(
        self,
        name: str,
        version: int,
        *,
        seed: int = 0,
        scale: float = 0.1,
        rank: int = 4,
        edit_weights: Callable[[bytes], bytes] = bytes,
        edit_config: Callable[[dict], dict] = dict,
    ) -> AdapterRef:
        """An adapter on all linear layers, with random A, random B of deviation `scale`, and its true probe.

        `edit_weights` and `edit_config` alter the files after the probe was made.
        """
        model = self.model(seed=seed, scale=scale, rank=rank)
        with TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            weights = edit_weights(Path(directory, "adapter_model.safetensors").read_bytes())
            config = edit_config(json.loads(Path(directory, "adapter_config.json").read_text()))
        return AdapterRef(
            name=name,
            version=version,
            weights=self._store.put_blob("adapter_weights", weights),
            config=self._store.put_blob("adapter_config", json.dumps(config).encode()),
            probe=self._store.put_blob("probe", json.dumps(asdict(_probe(model))).encode()),
        )

    def model(self, *, seed: int, scale: float = 0.1, rank: int = 4) -> PeftModel:
        """The base with the adapter that `export` writes for the same arguments."""
        base = AutoModelForCausalLM.from_pretrained(self._model_path, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    deviation = 0.1 if "lora_A" in parameter_name else scale
                    parameter.copy_(deviation * torch.randn(parameter.shape, generator=generator))
        return model.eval()


@torch.no_grad()
def next_logp(model: PeftModel, tokens: list[int], *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities [T, V] of the token after each of `tokens`."""
    return (model(torch.tensor([tokens])).logits[0].float() / temperature).log_softmax(-1)


def logp_gap(
    model: PeftModel, prompt: list[int], answer: list[int], logp: list[float], *, temperature: float = 1.0
) -> float:
    """Largest difference of `logp`, said of the tokens of `answer`, from the model's."""
    predicting_TV = next_logp(model, [*prompt, *answer], temperature=temperature)[len(prompt) - 1 : -1]
    expected_T = predicting_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return (torch.tensor(logp) - expected_T).abs().max().item()


def _probe(model: PeftModel) -> Probe:
    logp = next_logp(model, PROBE_PROMPT)[-1]
    with model.disable_adapter():
        logp_base = next_logp(model, PROBE_PROMPT)[-1]
    token_ids = logp.topk(PROBE_TOKENS).indices
    return Probe(
        prompt_tokens=PROBE_PROMPT,
        token_ids=token_ids.tolist(),
        logp=logp[token_ids].tolist(),
        logp_base=logp_base[token_ids].tolist(),
    )
