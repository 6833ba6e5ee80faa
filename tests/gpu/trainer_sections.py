"""The trainer against transformers, many adapters against one alone, recomputation against none."""

import copy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lora_rl.config import AdapterConfig, StoreConfig
from lora_rl.data.types import Sample
from lora_rl.trainer.attention import Ask, BucketedLayout, VarlenLayout
from lora_rl.trainer.model import DTYPES
from tests.builders import make_training_samples
from tests.gpu.bench_trainer import UNCLIPPED, BenchTrainer, Stepped, relative_gap
from tests.gpu.expert_section import experts
from tests.gpu.findings import Findings
from tests.gpu.scale import DENSE, Scale
from tests.oracle import grpo_loss, lora_parameters, response_logp
from tests.peft_adapters import PeftExporter

__all__ = ["experts", "joint", "parity", "recompute"]

LOGP_LIMIT, GRADIENT_LIMIT = 1e-5, 1e-4
"""In float32: of the mean |logp trainer - logp transformers|; of the largest difference over the largest gradient."""
ROUNDING = 1.2
"""In bfloat16: times what transformers in bfloat16 is away from itself in float32. Models differ by a factor of ten."""
SAME_WORK_LIMITS = {"float32": 1e-5, "bfloat16": 0.1}
"""Two ways to compute one gradient in one dtype: other shapes, other kernels, other order of sums. On SmolLM2 0.01 to
0.05 was measured in bfloat16, whose rounding alone moves the gradient by 0.5."""
RANKS = (3, 4, 8, 16)
"""Of the adapters that share a batch."""


def parity(found: Findings, scale: Scale) -> None:
    """Log-probabilities and gradients of an adapter, against transformers and PEFT."""
    for family in DENSE:
        for dtype in ("float32", "bfloat16"):
            _against_transformers(found, scale, scale.family(family), f"{family}, {dtype}", dtype, effect=0.1)
    if not scale.tiny:
        _against_transformers(found, scale, scale.model, "SmolLM2, bfloat16", "bfloat16", effect=0.01)
    if torch.cuda.is_available():
        _varlen_against_buckets(found)


def joint(found: Findings, scale: Scale) -> None:
    """Four adapters of different ranks in one batch, and each alone."""
    for dtype, path in (("float32", scale.family("qwen3")), ("bfloat16", scale.model)):
        with BenchTrainer(path, dtype, scale.scratch, slots=len(RANKS), max_rank=max(RANKS)) as trainer:
            vocab = trainer.actor._started().vocab_size
            batches = []
            for number, rank in enumerate(RANKS):
                adapter = _adapter(path, scale, rank, effect=0.05, seed=number).model_copy(update={"name": f"a{rank}"})
                samples = trainer.put(make_training_samples(vocab=vocab, seed=number, longest=24))
                batches.append(trainer.batch(adapter, trainer.start(adapter), samples))
            together = trainer.step(batches)
            alone = [trainer.step([batch])[0] for batch in batches]
        limit = SAME_WORK_LIMITS[dtype]
        for batch, ours, theirs in zip(batches, together, alone, strict=True):
            what = f"{dtype}, rank {batch.adapter.rank} of four"
            found.at_most(f"gradient: {what}", relative_gap(ours.gradient(), theirs.gradient()), limit)
            found.note(f"stepped weights: {what}", relative_gap(ours.state.weights, theirs.state.weights))


def recompute(found: Findings, scale: Scale) -> None:
    """Activations kept, and computed again in the backward pass, under dropout."""
    for dtype, path in (("float32", scale.family("qwen3")), ("bfloat16", scale.model)):
        adapter = _adapter(path, scale, rank=8, effect=0.05).model_copy(update={"dropout": 0.1})
        stepped: list[Stepped] = []
        for recomputing in (False, True):
            with BenchTrainer(path, dtype, scale.scratch, max_rank=8, recompute=recomputing) as trainer:
                vocab = trainer.actor._started().vocab_size
                samples = trainer.put(make_training_samples(vocab=vocab, longest=24))
                stepped += trainer.step([trainer.batch(adapter, trainer.start(adapter), samples)])
        kept, again = stepped
        found.at_most(f"gradient: {dtype}", relative_gap(again.gradient(), kept.gradient()), SAME_WORK_LIMITS[dtype])


def _against_transformers(found: Findings, scale: Scale, path: Path, what: str, dtype: str, effect: float) -> None:
    adapter = _adapter(path, scale, rank=8, effect=effect)
    peft = _peft(path, scale, rank=8, effect=effect)
    samples = make_training_samples(vocab=peft.config.vocab_size, longest=24)
    # The ratio is one of trainer over transformers: the trainer's own mismatch metric is what is asked for.
    with torch.no_grad():
        samples = [replace(sample, logp_rollout=response_logp(peft, sample).tolist()) for sample in samples]
    grpo_loss(peft, samples).backward()
    expected = {name: parameter.grad for name, parameter in lora_parameters(peft).items() if parameter.grad is not None}
    with BenchTrainer(path, dtype, scale.scratch, max_rank=8) as trainer:
        device = trainer.device
        (stepped,) = trainer.step([trainer.batch(adapter, trainer.start(adapter), trainer.put(samples))])
    logp_limit, gradient_limit = LOGP_LIMIT, GRADIENT_LIMIT
    if dtype != "float32":
        logp_gap, gradients = _rounded(peft, samples, dtype, device)
        gradient_gap = relative_gap(gradients, expected)
        found.note(f"|Δlogp| of transformers itself: {what}", logp_gap)
        found.note(f"gradient of transformers itself: {what}", gradient_gap)
        logp_limit, gradient_limit = ROUNDING * logp_gap, ROUNDING * gradient_gap
    found.at_most(f"|Δlogp|: {what}", stepped.metrics["mismatch/logp_abs/mean"], logp_limit)
    found.at_most(f"gradient: {what}", relative_gap(stepped.gradient(), expected), gradient_limit)


def _rounded(peft: Any, samples: list[Sample], dtype: str, device: str) -> tuple[float, dict[str, Tensor]]:
    """Mean |Δlogp| of transformers in `dtype` against the samples' own, and its gradients."""
    rounded = copy.deepcopy(peft).to(device, DTYPES[dtype])
    rounded.zero_grad()
    grpo_loss(rounded, samples).backward()
    gradients = {
        name: parameter.grad.float().cpu()
        for name, parameter in lora_parameters(rounded).items()
        if parameter.grad is not None
    }
    with torch.no_grad():
        gap = fmean(
            abs(ours - theirs)
            for sample in samples
            for ours, theirs in zip(response_logp(rounded, sample).tolist(), sample.logp_rollout, strict=True)
        )
    return gap, gradients


def _varlen_against_buckets(found: Findings) -> None:
    """The flash kernel over packed rows with shared prompts, and padded buckets in float32, forward and backward."""
    device = torch.device("cuda")
    asks, row = [], 0
    for prompt_length, responses in ((37, (5, 1, 18)), (64, (40,)), (3, (2, 2, 2, 2))):
        prompt = range(row, row + prompt_length)
        asks.append(Ask(queries=prompt, keys=prompt))
        row += prompt_length
        for length in responses:
            response = range(row, row + length)
            asks.append(Ask(queries=response, keys=[*prompt, *response]))
            row += length
    draw = torch.Generator(device).manual_seed(0)
    for heads, groups, size in ((9, 3, 64), (16, 8, 128), (4, 4, 32), (4, 2, 16)):
        inputs = [
            torch.randn(row, count, size, generator=draw, device=device, dtype=torch.bfloat16)
            for count in (heads, groups, groups)
        ]
        direction = torch.randn(row, heads, size, generator=draw, device=device)
        ours = _attention(VarlenLayout.of(asks, device), inputs, direction)
        theirs = _attention(BucketedLayout.of(asks, device), [tensor.float() for tensor in inputs], direction)
        for name in theirs:
            gap = relative_gap({name: ours[name]}, {name: theirs[name]})
            found.at_most(f"attention, {heads} heads of {groups} groups, {size} wide: {name}", gap, 0.02)


def _attention(layout: BucketedLayout | VarlenLayout, inputs: list[Tensor], direction: Tensor) -> dict[str, Tensor]:
    """Output, and the gradient of its product with `direction` by each input, in float32."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    query, key, value = leaves
    output = layout.attend(query, key, value, query.shape[-1] ** -0.5)
    (output.float() * direction).sum().backward()
    gradients = {f"gradient of {name}": leaf.grad for name, leaf in zip(("q", "k", "v"), leaves, strict=True)}
    return {"output": output.detach().float()} | {
        name: gradient.float() for name, gradient in gradients.items() if gradient is not None
    }


def _peft(path: Path, scale: Scale, rank: int, effect: float, seed: int = 1) -> Any:
    """The base with a random adapter, B of deviation `effect`, by PEFT in float32."""
    store = StoreConfig(uri=f"file://{scale.scratch}/store")
    return PeftExporter(path, store).model(seed=seed, scale=effect, rank=rank)


def _adapter(path: Path, scale: Scale, rank: int, effect: float, seed: int = 1) -> AdapterConfig:
    """The same adapter, for the trainer to start from."""
    directory = scale.scratch / f"{path.name}-{rank}-{effect}-{seed}"
    if not directory.exists():
        _peft(path, scale, rank, effect, seed).save_pretrained(str(directory))
    return AdapterConfig(rank=rank, alpha=2 * rank, init=str(directory), optimizer=UNCLIPPED)
