"""A model with experts: the trainer against transformers and PEFT, and grouped products against a loop in float32."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lora_rl.config import AdapterConfig
from lora_rl.trainer.adapter import lora_of
from lora_rl.trainer.model import DTYPES
from lora_rl.trainer.peft_io import export_peft
from lora_rl.trainer.pointwise import swiglu
from lora_rl.trainer.slot_experts import ExpertLinear, ExpertPair, Groups
from tests.builders import make_training_samples
from tests.gpu.bench_trainer import UNCLIPPED, BenchTrainer, relative_gap
from tests.gpu.findings import Findings
from tests.gpu.scale import Scale
from tests.oracle import (
    gradients_with_experts,
    grpo_loss,
    response_logp,
    trainable_peft_from_directory,
    write_peft_directory,
)
from tests.unit.trainer.forward import random_weights

LOGP_LIMIT, GRADIENT_LIMIT = 1e-5, 1e-4
"""In float32, as for dense models."""
GROUPED_LIMIT = 0.02
"""Of the largest difference over the largest value: inputs are the same, products are rounded to bfloat16."""
PLAIN = AdapterConfig(rank=8, alpha=16, optimizer=UNCLIPPED)
EXPERTS, WIDTH, INNER = 8, 64, 32
RANKS = {0: 4, 3: 8, 5: 16}
"""Of the slots among the rows."""


def experts(found: Findings, scale: Scale) -> None:
    """Log-probabilities and gradients with LoRA on every expert, and the kernels that compute many slots at once."""
    path = scale.family("qwen3_moe")
    adapter = PLAIN.model_copy(update={"init": str(_directory(scale, path))})
    reference = trainable_peft_from_directory(path, str(adapter.init)).eval()
    samples = make_training_samples(vocab=reference.config.vocab_size, longest=24)
    with torch.no_grad():
        samples = [replace(sample, logp_rollout=response_logp(reference, sample).tolist()) for sample in samples]
    grpo_loss(reference, samples).backward()
    expected = gradients_with_experts(reference, adapter.rank)
    for dtype in DTYPES:
        with BenchTrainer(path, dtype, scale.scratch, max_rank=8) as trainer:
            batch = trainer.batch(adapter, trainer.start(adapter), trainer.put(samples))
            (stepped,) = trainer.step([batch])
        logp_gap = stepped.metrics["mismatch/logp_abs/mean"]
        gradient_gap = relative_gap(stepped.gradient(), expected)
        if dtype == "float32":
            found.at_most(f"|Δlogp|: {dtype}", logp_gap, LOGP_LIMIT)
            found.at_most(f"gradient: {dtype}", gradient_gap, GRADIENT_LIMIT)
        else:
            # Rounding sends some rows to other experts: no limit says what is right.
            found.note(f"|Δlogp|: {dtype}", logp_gap)
            found.note(f"gradient: {dtype}", gradient_gap)
    _grouped_against_loop(found)


def _directory(scale: Scale, path: Path) -> Path:
    """A random adapter of every projection, as a PEFT directory."""
    with BenchTrainer(path, "float32", scale.scratch, max_rank=8) as trainer:
        lora = lora_of(PLAIN, 2, sparse=True)
        weights = random_weights(trainer.actor._bank, lora)
    files = export_peft(lora, PLAIN, weights, num_layers=2, base_model_name="base")
    return write_peft_directory(scale.scratch / "experts", *files)


def _grouped_against_loop(found: Findings) -> None:
    """The same bfloat16 values: grouped where there is a GPU, and expert by expert in float32 on the CPU."""
    draw = torch.Generator().manual_seed(0)
    sizes_ES = torch.randint(0, 40, (EXPERTS, len(RANKS)), generator=draw)
    sizes_ES[2] = 0  # an expert without rows
    sizes_ES[5, 1] = 0  # and one without those of a slot
    rows = int(sizes_ES.sum())
    layers = (
        _random_layer(("gate_proj", "up_proj"), INNER, WIDTH, draw),
        _random_layer(("down_proj",), WIDTH, INNER, draw),
    )
    x_MD, direction_MD = (torch.randn(rows, WIDTH, generator=draw).bfloat16() for _ in range(2))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ours = _products(layers, x_MD.to(device), direction_MD.to(device), sizes_ES.to(device))
    theirs = _products(layers, x_MD.float(), direction_MD.float(), sizes_ES)
    gaps = {name: relative_gap({name: ours[name]}, {name: theirs[name]}) for name in theirs}
    for kind in ("output", "gradient of the rows", "gradient of A", "gradient of B"):
        gap = max(gap for name, gap in gaps.items() if name.startswith(kind))
        found.at_most(f"grouped products, {len(RANKS)} slots: {kind}", gap, GROUPED_LIMIT)


def _random_layer(projections: tuple[str, ...], out: int, width: int, draw: torch.Generator) -> ExpertLinear:
    layer = ExpertLinear(projections, row_parallel=False)
    weight = torch.randn(EXPERTS, len(projections) * out, width, generator=draw) * width**-0.5
    layer.weight = nn.Parameter(weight.bfloat16(), requires_grad=False)
    for slot, rank in RANKS.items():
        for projection in projections:
            a, b = (
                nn.Parameter((torch.randn(EXPERTS, *shape, generator=draw) * width**-0.5).bfloat16().float())
                for shape in ((rank, width), (out, rank))
            )
            layer.pairs.setdefault(slot, {})[projection] = ExpertPair(a, b, scaling=2.0)
    return layer


def _products(
    layers: tuple[ExpertLinear, ExpertLinear], x_MD: Tensor, direction_MD: Tensor, sizes_ES: Tensor
) -> Mapping[str, Tensor]:
    """Output, and the gradients of its product with `direction_MD`, on the CPU in float32."""
    first, second = (_moved(layer, x_MD) for layer in layers)
    leaf_MD = x_MD.clone().requires_grad_()
    groups = Groups(slots=tuple(RANKS), sizes_ES=sizes_ES)
    output_MD = second(swiglu(first(leaf_MD, groups)), groups)
    (output_MD * direction_MD).float().sum().backward()
    found = {"output": output_MD.detach(), "gradient of the rows": leaf_MD.grad}
    for layer in (first, second):
        for slot, pairs in layer.pairs.items():
            for name, pair in pairs.items():
                of = f"{name} of slot {slot}"
                found |= {f"gradient of A, {of}": pair.a.grad, f"gradient of B, {of}": pair.b.grad}
    return {name: value.float().cpu() for name, value in found.items() if value is not None}


def _moved(layer: ExpertLinear, like: Tensor) -> ExpertLinear:
    """The layer with weights of the type and on the device of `like`, masters in float32 beside them."""
    moved = copy.copy(layer)
    moved._parameters = {"weight": nn.Parameter(layer.weight.to(like), requires_grad=False)}
    moved.pairs = {
        slot: {
            name: ExpertPair(nn.Parameter(pair.a.to(like.device)), nn.Parameter(pair.b.to(like.device)), pair.scaling)
            for name, pair in pairs.items()
        }
        for slot, pairs in layer.pairs.items()
    }
    return moved
