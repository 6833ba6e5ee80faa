"""Prefect tasks: the thin seam between flows and lora_rl. Each resolves refs, calls actors and commits.

step.py holds fingerprint, reuse and commit for all; context.py opens an iteration; run.py begins and ends a run;
report.py makes artifacts; rollout, reward, train_step, export_adapter and hot_load are the five steps.
"""

from tasks.context import START, Iteration, Start, open_iteration
from tasks.export_adapter import export_adapter, exported, new_adapter
from tasks.hot_load import hot_load
from tasks.report import report_iteration, report_progress
from tasks.reward import reward
from tasks.rollout import rollout
from tasks.run import begin_run, commit_iteration, committed_iteration, finish_run
from tasks.step import REUSED
from tasks.train_step import train_step

__all__ = [
    "REUSED",
    "START",
    "Iteration",
    "Start",
    "begin_run",
    "commit_iteration",
    "committed_iteration",
    "export_adapter",
    "exported",
    "finish_run",
    "hot_load",
    "new_adapter",
    "open_iteration",
    "report_iteration",
    "report_progress",
    "reward",
    "rollout",
    "train_step",
]
