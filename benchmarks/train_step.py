"""What a train step costs: many adapters against the frozen base alone, the whole step against transformers and PEFT.

    python -m benchmarks.train_step [--times N] [--model NAME] [--dtype T] [--threads N] [--without-peft]

16 prompts of 50 tokens, 8 answers of about 20 tokens each, rank 16 on all linear layers. Variants take turns, so that a
busy neighbour hits all of them. Takes about five minutes on two cores; runs on CUDA where there is a device.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from benchmarks.report import RESULTS, append_result, table
from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.data.types import Sample
from lora_rl.models import resolve_model
from lora_rl.store import open_store
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.adapter import lora_of
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.model import DTYPES, FrozenModel, build_model
from lora_rl.trainer.slot_bank import SlotBank
from tests.builders import make_sample

PROMPTS, GROUP, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 8, 50, 20
ADAPTER = AdapterConfig(rank=16, alpha=32)
ALGORITHM = AlgorithmConfig(max_mismatch=None)
SLOTS = (1, 4, 16)
PEFT_BATCH = 32


def make_batch(vocab: int) -> list[Sample]:
    """Random samples; half of each group is rewarded, so that all have an advantage."""
    draw = random.Random(0)
    samples = []
    for prompt in range(PROMPTS):
        prompt_tokens = draw.choices(range(vocab), k=PROMPT_TOKENS)
        for index in range(GROUP):
            response = draw.choices(range(vocab), k=RESPONSE_TOKENS + draw.randint(-5, 5))
            samples.append(
                make_sample(
                    id=f"{prompt}/{index}",
                    prompt_id=str(prompt),
                    prompt_tokens=prompt_tokens,
                    response_tokens=response,
                    logp_rollout=[-10.0] * len(response),
                    reward=float(index % 2),
                )
            )
    return samples


class Slots:
    """Forward and backward of one batch, its prompts dealt to a number of adapters; 0 is the base alone."""

    def __init__(self, model: FrozenModel, bank: SlotBank, samples: list[Sample], max_tokens: int):
        self._model = model
        self._bank = bank
        self._samples = samples
        self._learner = Learner(model, bank, max_tokens=max_tokens)

    def run(self, num_slots: int) -> None:
        lora = lora_of(ADAPTER, self._model.num_layers)
        for slot in range(max(SLOTS)):
            self._bank.clear(slot)
        if num_slots == 0:
            self._bank.fill(0, replace(lora, modules=()), {})
        for slot in range(num_slots):
            self._bank.fill(slot, lora, self._bank.fresh_weights(lora, slot))
        per_slot = len(self._samples) // max(1, num_slots)
        jobs = [
            Job(
                slot=slot,
                samples=self._samples[slot * per_slot : (slot + 1) * per_slot],
                algorithm=ALGORITHM,
                sampling=SamplingConfig(),
            )
            for slot in range(max(1, num_slots))
        ]
        self._learner.forward_backward(jobs)


def with_input_gradient(model: FrozenModel) -> None:
    """Let the base alone have a backward pass: as far as LoRA's goes, to the first layer's input."""
    model.gpt.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


class PeftStep:
    """The same step by transformers and PEFT: padded batches, float32 adapter, gradient accumulation."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device, samples: list[Sample]):
        base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self._model: Any = get_peft_model(base.to(device), config)
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-4)
        self._samples = samples
        self._device = device

    def run(self) -> None:
        num_tokens = sum(len(sample.response_tokens) for sample in self._samples)
        for start in range(0, len(self._samples), PEFT_BATCH):
            samples = self._samples[start : start + PEFT_BATCH]
            (self._loss(samples) / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _loss(self, samples: list[Sample]) -> torch.Tensor:
        sequences = [[*sample.prompt_tokens, *sample.response_tokens] for sample in samples]
        longest = max(map(len, sequences))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in sequences], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in sequences], device=self._device)
        logits = self._model(input_ids=tokens, attention_mask=mask).logits[:, :-1].float()
        logp = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        loss = logp.new_zeros(())
        for row, sample in zip(logp, samples, strict=True):
            first = len(sample.prompt_tokens) - 1
            ratio = (row[first : first + len(sample.response_tokens)] + 10.0).exp()
            advantage = 1.0 if sample.reward else -1.0
            loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        return loss


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main(arguments: argparse.Namespace) -> None:
    path = resolve_model(arguments.model)
    trainer = TrainerConfig(threads=arguments.threads, max_tokens_per_gpu=arguments.max_tokens)
    with TemporaryDirectory() as directory:
        store = StoreConfig(uri=directory)
        actor = TrainerActor(model_path=path, dtype=arguments.dtype, trainer=trainer)
        device = torch.device(actor.start()["device"])
        model = build_model(path, dtype=arguments.dtype, device=device)
        samples = make_batch(model.vocab_size)
        with_input_gradient(model)
        slots = Slots(model, SlotBank(model), samples, arguments.max_tokens)
        blob = open_store(store).put_blob("samples", write_samples(samples))
        start = actor.new_state(store=store, adapter=ADAPTER, seed=0)

        def step() -> None:
            actor.train_step(
                store=store,
                adapter=ADAPTER,
                start=start,
                samples=blob,
                algorithm=ALGORITHM,
                sampling=SamplingConfig(),
                seed=0,
            )

        variants: dict[str, Callable[[], Any]] = {"base alone, forward and backward": lambda: slots.run(0)}
        variants |= {f"{number} adapters, forward and backward": lambda n=number: slots.run(n) for number in SLOTS}
        variants["whole train step, 1 adapter"] = step
        if not arguments.without_peft:
            variants["whole step by transformers + PEFT"] = PeftStep(path, DTYPES[arguments.dtype], device, samples).run
        for run in variants.values():
            run()
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(arguments.times):
            for name, run in variants.items():
                seconds[name].append(timed(run))
    report(arguments, device, samples, seconds)


def report(
    arguments: argparse.Namespace, device: torch.device, samples: list[Sample], seconds: dict[str, list[float]]
) -> None:
    tokens = sum(len(sample.prompt_tokens) + len(sample.response_tokens) for sample in samples)
    base = median(next(iter(seconds.values())))
    rows = []
    for name, times in seconds.items():
        middle = median(times)
        rows.append([name, f"{middle:.2f}", f"{min(times):.2f}", f"{tokens / middle:.0f}", f"{middle / base:.2f}"])
    body = (
        f"{arguments.model} in {arguments.dtype} on {device.type}, {arguments.threads} threads; "
        f"{len(samples)} samples, {tokens} tokens with each sample's prompt counted, "
        f"rank {ADAPTER.rank} on all linear layers; "
        f"median and best of {arguments.times} turns.\n\n"
        + table(["variant", "seconds", "best", "tokens/s", "times base"], rows)
    )
    append_result(RESULTS / f"train_step-{device.type}.md", title="Train step", body=body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="turns measured of each variant")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="directory or catalogue name")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(DTYPES))
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--max-tokens", type=int, default=4096, help="rows of a micro-batch")
    parser.add_argument("--without-peft", action="store_true", help="leave transformers + PEFT out")
    main(parser.parse_args())
