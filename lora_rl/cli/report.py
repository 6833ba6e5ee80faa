"""What a finished run shows: the reward curve, answers before and after, and where the adapter lies."""

from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from lora_rl.cli.terminal import printable, shown_uri
from lora_rl.data.samples_io import read_samples
from lora_rl.data.types import Sample
from lora_rl.store import ArtifactStore, BlobRef, RunRecords
from lora_rl.tracking import last_turn, mean_score, reward_curve_png, reward_curve_text

ANSWERS_SHOWN = 4
AVERAGED = 3
"""Iterations whose share of exact answers is averaged: one has few prompts."""
EXACT = "exact"
"""The grader whose share of right answers is shown, where the run has it."""


def print_report(console: Console, artifacts: ArtifactStore, records: RunRecords, run: str, iterations: int) -> None:
    """The report of a run whose `iterations` are committed; the curve is also written to the store."""
    commits = records.iteration_commits(iterations)
    its, rewards = [commit["it"] for commit in commits], [commit["reward_mean"] for commit in commits]
    scored = [mean_score(commit["metrics"], EXACT) for commit in commits]
    exact = None if None in scored else scored
    console.print(reward_curve_text(its, rewards))
    if exact:
        first, last = fmean(exact[:AVERAGED]), fmean(exact[-AVERAGED:])
        console.print(
            f"exact answers: {first:.0%} in the first {AVERAGED} iterations, {last:.0%} in the last {AVERAGED}"
        )
    console.print(_answers(artifacts, commits[0], "answers before"))
    console.print(_answers(artifacts, commits[-1], "answers after"))
    key = f"runs/{run}/reward_curve.png"
    artifacts.write(key, reward_curve_png(its, rewards, title=run, exact=exact))
    console.print(f"curve    {shown_uri(artifacts.uri(key))}", soft_wrap=True)


def print_adapter(console: Console, result: dict[str, Any]) -> None:
    """Where the adapter lies, for PEFT and vLLM."""
    console.print(f"adapter  {shown_uri(result['uri'])}  (a PEFT directory)", soft_wrap=True)


def _answers(artifacts: ArtifactStore, commit: dict[str, Any], title: str) -> Table:
    samples = read_samples(artifacts.get_blob(BlobRef.from_json(commit["samples"])))
    firsts: dict[str, Sample] = {}
    for sample in samples:
        firsts.setdefault(sample.prompt_id, sample)
    table = Table("prompt", "answer", "reference", "reward", title=f"{title} (iteration {commit['it']})")
    for sample in list(firsts.values())[:ANSWERS_SHOWN]:
        reward = "-" if sample.reward is None else f"{sample.reward:.2f}"
        texts = (last_turn(sample), sample.response_text.strip(), sample.label or "")
        table.add_row(*map(printable, texts), reward)
    return table
