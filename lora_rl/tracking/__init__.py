"""What people look at: numbers, curves, tables and the state of a run.

metrics.py declares every metric; plots.py draws; samples.py shows answers; summary.py puts an iteration in a
line or a page, markdown.py escapes; status.py reads a run from its records.
"""

from lora_rl.tracking.metrics import METRICS, Metric, check_declared, metrics_page
from lora_rl.tracking.plots import reward_curve_png, reward_curve_text, timeline_png
from lora_rl.tracking.samples import last_turn, sample_table
from lora_rl.tracking.status import iteration_under_way, run_names, run_status, runs_overview
from lora_rl.tracking.summary import iteration_line, iteration_markdown, mean_score, publish_metrics

__all__ = [
    "METRICS",
    "Metric",
    "check_declared",
    "iteration_line",
    "iteration_markdown",
    "iteration_under_way",
    "last_turn",
    "mean_score",
    "metrics_page",
    "publish_metrics",
    "reward_curve_png",
    "reward_curve_text",
    "run_names",
    "run_status",
    "runs_overview",
    "sample_table",
    "timeline_png",
]
