"""Pictures of a run: its reward, and where its time goes."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 3.6, 120
SMOOTHING_WINDOW = 5
INK, GRID, BLUE, ORANGE = "#24292f", "#d8dee4", "#2457d6", "#d9622b"
STEP_COLORS = {
    "rollout": "#2457d6",
    "reward": "#7aa2f7",
    "train_step": "#d9622b",
    "export_adapter": "#f2b38c",
    "hot_load": "#3a9d6e",
}


def reward_curve_png(
    iterations: Sequence[int], rewards: Sequence[float], *, title: str, exact: Sequence[float] | None = None
) -> bytes:
    """PNG of the mean reward by iteration: values as dots, smoothed over a few as a line.

    `exact`, where given, is the share of exact answers in [0, 1] by iteration, in a panel of its own.
    """
    figure, panels = _canvas(title, 1 if exact is None else 2)
    _curve(panels[0], iterations, rewards, BLUE, "mean reward")
    if exact is not None:
        _curve(panels[1], iterations, exact, ORANGE, "exact answers")
        panels[1].set_ylim(bottom=0)
        panels[1].yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return _png(figure)


def held_out_png(rewards: Sequence[float], held_out: Mapping[int, float], *, title: str) -> bytes:
    """PNG of the mean reward of each iteration, and of the share of right answers to held-out prompts.

    `held_out` is that share in [0, 1] by the number of iterations done before.
    """
    figure, (training, evaluation) = _canvas(title, 2)
    _curve(training, range(len(rewards)), rewards, BLUE, "mean reward, training")
    evaluation.plot(list(held_out), list(held_out.values()), color=ORANGE, marker="o", markersize=4.5, linewidth=2.4)
    _label(evaluation, list(held_out), "right answers, held-out prompts")
    evaluation.set_ylim(0, 1)
    evaluation.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return _png(figure)


def reward_curve_text(iterations: Sequence[int], rewards: Sequence[float], *, width: int = 60, height: int = 12) -> str:
    """The smoothed mean reward for a terminal."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = width, height
    figure.x_label, figure.y_label = "iteration", "reward"
    figure.set_x_limits(min_=min(iterations), max_=max(max(iterations), min(iterations) + 1))
    figure.y_ticks_fkt = lambda value, _: f"{value:6.2f}"
    figure.x_ticks_fkt = lambda value, _: f"{value:.0f}"
    figure.plot(list(iterations), smoothed(rewards))
    return figure.show()


def timeline_png(commits: Sequence[Mapping[str, Any]], *, title: str, last: int = 20) -> bytes:
    """PNG of the seconds that each step took in the `last` iterations, from their COMMIT records, as stacked bars."""
    shown = commits[-last:]
    iterations = [commit["it"] for commit in shown]
    figure, (axes,) = _canvas(title, 1)
    bottom = [0.0] * len(shown)
    for step, color in STEP_COLORS.items():
        seconds = [float(commit["steps"].get(step, {}).get("seconds") or 0.0) for commit in shown]
        axes.bar(iterations, seconds, bottom=bottom, width=0.72, color=color, label=step)
        bottom = [below + height for below, height in zip(bottom, seconds, strict=True)]
    _label(axes, iterations, "seconds")
    axes.set_ylim(0, max(bottom) * 1.18)
    axes.legend(frameon=False, loc="upper left", ncols=len(STEP_COLORS), columnspacing=1.2, handlelength=1.0)
    return _png(figure)


def smoothed(values: Sequence[float], window: int = SMOOTHING_WINDOW) -> list[float]:
    """Mean of each value and the ones up to `window` // 2 away on either side."""
    half = window // 2
    around = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in around]


def _canvas(title: str, num_panels: int) -> "tuple[Figure, list[Axes]]":
    # matplotlib takes a second to import, which the terminal can do without.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.015, ha="left", fontsize=13, fontweight="bold", color=INK)
    return figure, list(figure.subplots(1, num_panels, squeeze=False)[0])


def _curve(axes: "Axes", iterations: Sequence[int], values: Sequence[float], color: str, label: str) -> None:
    axes.plot(iterations, values, color=color, alpha=0.35, marker="o", markersize=3.5, linewidth=0)
    axes.plot(iterations, smoothed(values), color=color, linewidth=2.4)
    _label(axes, iterations, label)


def _label(axes: "Axes", iterations: Sequence[int], label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(label, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("iteration", color=INK)
    axes.set_xlim(min(iterations) - 0.5, max(iterations) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(length=0, labelcolor=INK)


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
