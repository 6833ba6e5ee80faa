"""Pictures of a run: the reward curve as PNG and for a terminal."""

import io
from collections.abc import Sequence

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 4.5, 110
SMOOTHING_WINDOW = 5
ACCENT, MUTED, SECOND = "#2457d6", "#a9bdf2", "#e07b39"


def reward_curve_png(
    iterations: Sequence[int], rewards: Sequence[float], *, title: str, exact: Sequence[float] | None = None
) -> bytes:
    """PNG of the mean reward by iteration, smoothed over a few, with the share of exact answers [0, 1] where given."""
    # matplotlib takes a second to import, and the terminal needs it not
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(iterations, rewards, color=MUTED, marker="o", markersize=3, linewidth=1)
    axes.plot(iterations, smoothed(rewards), color=ACCENT, linewidth=2.4, label="mean reward")
    if exact is not None:
        axes.plot(iterations, smoothed(exact), color=SECOND, linewidth=2.0, label="exact answers (share)")
    axes.set_xlabel("iteration")
    axes.set_ylabel("reward")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="upper left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


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


def smoothed(values: Sequence[float], window: int = SMOOTHING_WINDOW) -> list[float]:
    """Mean of each value and the ones up to `window` // 2 away on either side."""
    half = window // 2
    around = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in around]
