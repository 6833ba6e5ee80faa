"""Tokens a second and share of a GPU's peak, forward and backward, beside transformers and PEFT in the same run.

    python -m benchmarks.train_throughput [--shapes NAME ...] [--cases 8x2048:1,4 ...] [--peft NAME ...] [--minutes M]

Random weights in bfloat16, rank 16 on all linear layers, every token trained, the whole vocabulary. A case is sequences
times tokens, and the numbers of slots that they are dealt to. Each row is written as it is measured; where memory does
not suffice it says so, and what the minutes do not suffice for is left out. Needs a GPU; about seven minutes on an H200
for three shapes.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
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
from lora_rl.errors import TrainerError
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
WARM_UP, LEAST, MEASURED_S = 2, 3, 1.5
"""Runs before, and the runs and seconds that are measured at least."""
OUT_OF_MEMORY = ("out of memory", "", "", "")
"""Where a row's numbers would be."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences B of S tokens."""

    sequences: int
    tokens: int
    slots: tuple[int, ...]
    """Numbers of slots to deal them to; each divides B."""

    @classmethod
    def of(cls, text: str) -> "Case":
        """`8x2048:1,4` is eight sequences of 2048 tokens, for one slot and for four."""
        size, _, slots = text.partition(":")
        sequences, tokens = map(int, size.split("x"))
        return cls(sequences=sequences, tokens=tokens, slots=tuple(map(int, (slots or "1").split(","))))

    @property
    def text(self) -> str:
        return f"{self.sequences}x{self.tokens}"

    @property
    def total(self) -> int:
        return self.sequences * self.tokens

    def flops(self, config: Qwen3Config) -> float:
        """Forward and gradient of inputs (the base is frozen, so no gradient of weights), and causal attention."""
        heads = config.num_attention_heads * config.head_dim
        key_values = (config.num_key_value_heads or config.num_attention_heads) * config.head_dim
        layer = 2 * config.hidden_size * (heads + key_values)
        weights = config.num_hidden_layers * (layer + 3 * config.hidden_size * config.intermediate_size)
        weights += config.vocab_size * config.hidden_size
        attention = config.num_hidden_layers * self.total * self.tokens / 2 * heads * 4 * 3.5
        return 4.0 * weights * self.total + attention

    def samples(self, vocab: int, num_slots: int) -> list[list[Sample]]:
        """Each slot's: one prompt token and S answers a sequence, so S rows of which each predicts.

        One answer of a token and without reward for each slot gives the others an advantage. It needs no row of its
        own: the prompt that it shares predicts it.
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
                        logp_rollout=[-math.log(vocab)] * (len(row) - 1),
                        reward=float(index < share),
                    )
                    for index, row in enumerate(rows)
                ]
            )
        return batches


@dataclass(frozen=True, kw_only=True)
class Step:
    """Forward and backward."""

    run: Callable[[], Any]
    leaves: Sequence[torch.Tensor]
    """What gets a gradient."""

    def drop_gradients(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


def numbers_of(case: Case, config: Qwen3Config, seconds: float, peak_gib: float) -> list[str]:
    """A row's last cells."""
    tflops = case.flops(config) / seconds / 1e12
    share = f"{100 * tflops / PEAK_TFLOPS:.0f} %"
    return [f"{case.total / seconds:.0f}", f"{tflops:.0f}", share, f"{peak_gib:.1f}"]


class Table:
    """Rows in the result file, each as soon as it is there."""

    HEADER = ("shape", "by", "case", "tokens/s", "TFLOP/s", "of peak", "peak GiB")

    def __init__(self, out: Path, minutes: float) -> None:
        self._out = out
        self._end = time.monotonic() + 60 * minutes
        append_result(out, title="Train throughput", body=table(self.HEADER, []))

    @property
    def over(self) -> bool:
        """Whether no time is left for another row."""
        return time.monotonic() > self._end

    def measure(self, name: str, shape: str, case: Case, config: Qwen3Config, step: Step) -> None:
        """Writes the median of some runs after a warm-up, or that memory does not suffice."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            seconds = _seconds(step)
        except (torch.OutOfMemoryError, TrainerError) as error:
            print(f"{shape}, {name}, {case.text}: {error}", flush=True)
            numbers = OUT_OF_MEMORY
        else:
            numbers = numbers_of(case, config, seconds, torch.cuda.max_memory_allocated() / 2**30)
        self.add(name, shape, case, numbers)

    def add(self, name: str, shape: str, case: Case, numbers: Sequence[str]) -> None:
        line = f"| {' | '.join([shape, name, case.text, *numbers])} |\n"
        with self._out.open("a") as file:
            file.write(line)
        print(line, end="", flush=True)


def _seconds(step: Step) -> float:
    """Of one run, the median. Dropping its gradients belongs to the optimizer's step, and is not timed."""
    seconds: list[float] = []
    while len(seconds) < WARM_UP + LEAST or sum(seconds[WARM_UP:]) < MEASURED_S:
        torch.cuda.synchronize()
        began = time.perf_counter()
        step.run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        step.drop_gradients()
    return median(seconds[WARM_UP:])


@contextmanager
def ours(path: Path, recompute: bool) -> Iterator[tuple[FrozenModel, SlotBank]]:
    device = init_distributed(0, 1)
    model = build_model(path, dtype="bfloat16", trainer=TrainerConfig(recompute=recompute), device=device)
    bank = SlotBank(model)
    yield model, bank
    del model, bank
    free()


def our_step(model: FrozenModel, bank: SlotBank, case: Case, num_slots: int) -> Step:
    """One packed micro-batch in which the sequences are dealt to the slots."""
    lora = lora_of(AdapterConfig(rank=RANK), model.num_layers)
    jobs, parameters = [], []
    for slot, samples in enumerate(case.samples(model.vocab_size, num_slots)):
        parameters += bank.fill(slot, lora, bank.fresh_weights(lora, slot))
        jobs.append(Job(slot=slot, samples=samples, algorithm=ALGORITHM, sampling=SamplingConfig()))
    learner = Learner(model, bank, max_tokens=case.total)
    return Step(run=lambda: learner.forward_backward(jobs), leaves=[parameter.value for parameter in parameters])


@contextmanager
def theirs(config: Qwen3Config, recompute: bool, *, device: str) -> Iterator[Any]:
    with torch.device(device):
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


def their_step(model: Any, config: Qwen3Config, case: Case) -> Step:
    """The same with cross-entropy in chunks of rows that are computed again in the backward pass."""
    head = model.lm_head.weight
    tokens = torch.randint(config.vocab_size, (case.sequences, case.tokens), device=head.device)

    def chunk_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((hidden @ head.T).float(), targets, reduction="sum")

    def step() -> None:
        hidden = model.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        chunks = zip(hidden.split(PEFT_ROWS), tokens.flatten().split(PEFT_ROWS), strict=True)
        losses = [checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks]
        (torch.stack(losses).sum() / case.total).backward()

    return Step(run=step, leaves=[parameter for parameter in model.parameters() if parameter.requires_grad])


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def profiled(step: Step) -> str:
    """Where the time of one step goes, by kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    step.run()
    with torch.profiler.profile(activities=activities) as profile:
        step.run()
        torch.cuda.synchronize()
    return profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=90)


def run_shape(arguments: argparse.Namespace, shape: str, rows: Table) -> None:
    cases = [Case.of(text) for text in arguments.cases]
    with TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / shape
        config = make_checkpoint(SHAPES[shape], path, device="cuda")
        free()
        for recompute in (False, True):
            run_ours(arguments, shape, path, config, cases, recompute, rows)
            if shape in arguments.peft:
                run_theirs(shape, config, cases, recompute, rows)


def run_ours(
    arguments: argparse.Namespace,
    shape: str,
    path: Path,
    config: Qwen3Config,
    cases: Sequence[Case],
    recompute: bool,
    rows: Table,
) -> None:
    note = ", recompute" if recompute else ""
    with ours(path, recompute) as (model, bank):
        for case, slots in [(each, slots) for each in cases for slots in each.slots]:
            if rows.over:
                break
            rows.measure(f"lora-rl, {slots} slots{note}", shape, case, config, our_step(model, bank, case, slots))
            if arguments.profile and not recompute:
                name = f"profile-{shape}-{case.text}-{slots}.txt"
                (arguments.profile / name).write_text(profiled(our_step(model, bank, case, slots)))
            for slot in range(slots):
                bank.clear(slot)
        # the names would keep the model in memory beside the next
        del model, bank


def run_theirs(shape: str, config: Qwen3Config, cases: Sequence[Case], recompute: bool, rows: Table) -> None:
    note = ", recompute" if recompute else ""
    with theirs(config, recompute, device="cuda") as model:
        for case in cases:
            if not rows.over:
                name = f"transformers + PEFT{note}"
                rows.measure(name, shape, case, config, their_step(model, config, case))
            for parameter in model.parameters():
                parameter.grad = None
        del model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-4b", "qwen3-0.6b", "qwen3-8b"], choices=SHAPES)
    parser.add_argument("--cases", nargs="+", default=["8x2048:1,4", "1x16384", "16x2048:16", "32x2048:32"])
    parser.add_argument("--peft", nargs="*", default=["qwen3-4b"], choices=SHAPES, help="shapes to compare with PEFT")
    parser.add_argument("--minutes", type=float, default=8.0, help="no row is begun after them")
    parser.add_argument("--profile", type=Path, help="folder for profiles of our steps")
    parser.add_argument("--out", type=Path, default=RESULTS / "train_throughput-gpu.md")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    rows = Table(arguments.out, arguments.minutes)
    for shape in arguments.shapes:
        if not rows.over:
            run_shape(arguments, shape, rows)


if __name__ == "__main__":
    main(parse())
