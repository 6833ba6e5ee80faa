"""Tokens a second and share of a GPU's peak, forward and backward, beside transformers and PEFT in the same run.

    python -m benchmarks.train_throughput [--shapes qwen3-4b ...] [--cases 8x2048 ...] [--slots 1 16] [--profile]

Random weights in bfloat16, rank 16 on all linear layers, every token trained, the whole vocabulary. A case is sequences
times tokens, dealt to the slots. Needs a GPU; about four minutes for one shape on an H200.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import RESULTS, append_result, table
from benchmarks.shapes import SHAPES, make_checkpoint
from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig, TrainerConfig
from lora_rl.data.types import Sample
from lora_rl.trainer.adapter import lora_of
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.megatron_compat import init_distributed
from lora_rl.trainer.model import FrozenModel, build_model
from lora_rl.trainer.slot_bank import SlotBank
from tests.builders import make_sample

RANK = 16
ALGORITHM = AlgorithmConfig(max_mismatch=None)
PEAK_TFLOPS = 989.0
"""Dense bfloat16 of an H100 or H200 by its data sheet."""
PEFT_ROWS = 4096
"""Logits of so many rows live at a time."""
WARM_UP, TIMES = 2, 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences B of S tokens."""

    sequences: int
    tokens: int

    @classmethod
    def of(cls, text: str) -> "Case":
        sequences, tokens = map(int, text.split("x"))
        return cls(sequences=sequences, tokens=tokens)

    @property
    def total(self) -> int:
        return self.sequences * self.tokens

    def flops(self, config: Qwen3Config) -> float:
        """Forward and gradient of inputs (the base is frozen, so no gradient of weights), and causal attention."""
        heads = config.num_attention_heads * config.head_dim
        layer = 2 * config.hidden_size * (heads + config.num_key_value_heads * config.head_dim)
        weights = config.num_hidden_layers * (layer + 3 * config.hidden_size * config.intermediate_size)
        weights += config.vocab_size * config.hidden_size
        attention = config.num_hidden_layers * self.total * self.tokens / 2 * heads * 4 * 3.5
        return 4.0 * weights * self.total + attention

    def samples(self, vocab: int, num_slots: int) -> list[list[Sample]]:
        """Each slot's: one prompt token and S answers a sequence, so S rows of which each predicts.

        One answer of a token and without reward for each slot gives the others an advantage, at the cost of a row.
        """
        draw = torch.Generator().manual_seed(0)
        share = self.sequences // num_slots
        batches = []
        for _ in range(num_slots):
            rows = torch.randint(vocab, (share, self.tokens + 1), generator=draw).tolist()
            rows.append(rows[0][:2])
            batches.append(
                [
                    make_sample(
                        id=str(index),
                        prompt_id="0",
                        prompt_tokens=row[:1],
                        response_tokens=row[1:],
                        logp_rollout=[-12.0] * (len(row) - 1),
                        reward=float(index < share),
                    )
                    for index, row in enumerate(rows)
                ]
            )
        return batches


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One line of the table."""

    name: str
    case: str
    tokens_per_s: float
    tflops: float
    peak_gib: float


def measure(name: str, case: Case, config: Qwen3Config, run: Callable[[], Any]) -> Measured | None:
    """Mean of some runs after a warm-up; None where memory does not suffice."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        for _ in range(WARM_UP):
            run()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(TIMES):
            run()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        print(f"{name}, {case.sequences}x{case.tokens}: out of memory", flush=True)
        return None
    seconds = (time.perf_counter() - began) / TIMES
    result = Measured(
        name=name,
        case=f"{case.sequences}x{case.tokens}",
        tokens_per_s=case.total / seconds,
        tflops=case.flops(config) / seconds / 1e12,
        peak_gib=torch.cuda.max_memory_allocated() / 2**30,
    )
    print(result, flush=True)
    return result


@contextmanager
def ours(path: Path, recompute: bool) -> Iterator[tuple[FrozenModel, SlotBank]]:
    device = init_distributed(0, 1)
    model = build_model(path, dtype="bfloat16", trainer=TrainerConfig(recompute=recompute), device=device)
    bank = SlotBank(model)
    yield model, bank
    del model, bank
    free()


def our_step(model: FrozenModel, bank: SlotBank, case: Case, num_slots: int) -> Callable[[], Any]:
    """Forward and backward of one packed micro-batch in which the sequences are dealt to the slots."""
    lora = lora_of(AdapterConfig(rank=RANK), model.num_layers)
    jobs, parameters = [], []
    for slot, samples in enumerate(case.samples(model.vocab_size, num_slots)):
        parameters += bank.fill(slot, lora, bank.fresh_weights(lora, slot))
        jobs.append(Job(slot=slot, samples=samples, algorithm=ALGORITHM, sampling=SamplingConfig()))
    learner = Learner(model, bank, max_tokens=case.total + num_slots)

    def step() -> None:
        learner.forward_backward(jobs)
        for parameter in parameters:
            parameter.value.grad = None

    return step


@contextmanager
def theirs(config: Qwen3Config, recompute: bool) -> Iterator[Any]:
    with torch.device("cuda"):
        base = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    lora = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(base, lora, autocast_adapter_dtype=False).train()
    if recompute:
        model.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    inner = model.base_model.model
    yield inner
    del base, model, inner
    free()


def their_step(model: Any, config: Qwen3Config, case: Case) -> Callable[[], Any]:
    """The same with cross-entropy in chunks of rows that are computed again in the backward pass."""
    tokens = torch.randint(config.vocab_size, (case.sequences, case.tokens), device="cuda")
    head = model.lm_head.weight

    def chunk_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((hidden @ head.T).float(), targets, reduction="sum")

    def step() -> None:
        hidden = model.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        chunks = zip(hidden.split(PEFT_ROWS), tokens.flatten().split(PEFT_ROWS), strict=True)
        losses = [checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks]
        (torch.stack(losses).sum() / case.total).backward()

    return step


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def profiled(run: Callable[[], Any]) -> str:
    """Where the time of one step goes, by kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    run()
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=90)


def run_shape(arguments: argparse.Namespace, shape: str) -> list[Measured | None]:
    cases, results = [Case.of(text) for text in arguments.cases], []
    with TemporaryDirectory(dir="/dev/shm") as directory:
        config = make_checkpoint(SHAPES[shape], Path(directory) / shape, device="cuda")
        for recompute in (False, True):
            note = ", recompute" if recompute else ""
            with ours(Path(directory) / shape, recompute) as (model, bank):
                for case in cases:
                    for slots in [1] if recompute else [slots for slots in arguments.slots if slots <= case.sequences]:
                        name = f"lora-rl, {slots} slots{note}"
                        results.append(measure(name, case, config, our_step(model, bank, case, slots)))
                        if arguments.profile and not recompute:
                            name = f"profile-{shape}-{case.sequences}x{case.tokens}-{slots}.txt"
                            (arguments.profile / name).write_text(profiled(our_step(model, bank, case, slots)))
                        for slot in range(slots):
                            bank.clear(slot)
                # the name would keep the model in memory beside the next
                del model, bank
            if not arguments.without_peft:
                with theirs(config, recompute) as model:
                    for case in cases:
                        name = f"transformers + PEFT{note}"
                        results.append(measure(name, case, config, their_step(model, config, case)))
                    del model
    return results


def report(shape: str, results: list[Measured | None]) -> str:
    rows = [
        [
            result.name,
            result.case,
            f"{result.tokens_per_s:.0f}",
            f"{result.tflops:.0f}",
            f"{100 * result.tflops / PEAK_TFLOPS:.0f} %",
            f"{result.peak_gib:.1f}",
        ]
        for result in results
        if result is not None
    ]
    return f"### {shape}\n\n" + table(["", "case", "tokens/s", "TFLOP/s", "of peak", "peak GiB"], rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-4b"], choices=SHAPES)
    parser.add_argument("--cases", nargs="+", default=["8x2048", "1x16384"])
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--without-peft", action="store_true")
    parser.add_argument("--profile", type=Path, help="folder for profiles of our steps")
    parser.add_argument("--out", type=Path, default=RESULTS / "train_throughput-gpu.md")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    for shape in arguments.shapes:
        append_result(arguments.out, title="Train throughput", body=report(shape, run_shape(arguments, shape)))


if __name__ == "__main__":
    main(parse())
