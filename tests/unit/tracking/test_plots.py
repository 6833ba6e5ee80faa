"""Pictures show what they are given."""

import io

import numpy as np
import pytest
from PIL import Image

from lora_rl.tracking.plots import (
    DPI,
    HEIGHT_IN,
    WIDTH_IN,
    held_out_png,
    reward_curve_png,
    reward_curve_text,
    smoothed,
    timeline_png,
)

SECONDS = {"rollout": 4.0, "reward": 1.0, "train_step": 3.0, "export_adapter": 0.5, "hot_load": 0.5}


def _commit(it: int, **seconds: float):
    return {"it": it, "steps": {step: {"seconds": value} for step, value in (SECONDS | seconds).items()}}


def _image(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def _num_pixels(png: bytes, color: str) -> int:
    pixels_HW3 = np.asarray(_image(png))
    return int((pixels_HW3 == list(bytes.fromhex(color.removeprefix("#")))).all(axis=-1).sum())


def test_the_curve_has_its_size_and_a_second_panel_only_with_exact_answers():
    alone = reward_curve_png([0, 1, 2], [0.0, 0.5, 1.0], title="run")
    both = reward_curve_png([0, 1, 2], [0.0, 0.5, 1.0], title="run", exact=[0.0, 0.2, 0.4])
    assert _image(alone).size == (round(WIDTH_IN * DPI), round(HEIGHT_IN * DPI))
    assert _num_pixels(alone, "#2457d6") > 100
    assert _num_pixels(alone, "#d9622b") == 0
    assert _num_pixels(both, "#d9622b") > 100


def test_the_same_values_give_the_same_picture_and_others_another():
    first = reward_curve_png([0, 1], [0.0, 0.5], title="run")
    assert reward_curve_png([0, 1], [0.0, 0.5], title="run") == first
    assert reward_curve_png([0, 1], [0.5, 0.0], title="run") != first


def test_a_single_iteration_is_a_picture_too():
    assert _image(reward_curve_png([0], [0.5], title="run")).size[0] > 0
    assert _image(timeline_png([_commit(0)], title="run")).size[0] > 0


def test_the_held_out_panel_shows_the_share_at_the_iterations_that_were_evaluated():
    rising = held_out_png([0.0, 0.5, 1.0], {0: 0.0, 3: 0.6}, title="run")
    assert _num_pixels(rising, "#d9622b") > 100
    assert rising == held_out_png([0.0, 0.5, 1.0], {0: 0.0, 3: 0.6}, title="run")
    assert rising != held_out_png([0.0, 0.5, 1.0], {0: 0.0, 3: 0.7}, title="run")


def test_bars_grow_with_the_seconds_of_their_step():
    even = timeline_png([_commit(it) for it in range(3)], title="run")
    slow_rollout = timeline_png([_commit(it, rollout=40.0) for it in range(3)], title="run")
    assert _num_pixels(slow_rollout, "#2457d6") > 1.5 * _num_pixels(even, "#2457d6")
    assert _num_pixels(slow_rollout, "#d9622b") < 0.5 * _num_pixels(even, "#d9622b")


def test_the_timeline_shows_the_last_iterations_only():
    commits = [_commit(it, rollout=float(it)) for it in range(1, 9)]
    assert timeline_png(commits, title="run", last=3) == timeline_png(commits[-3:], title="run")
    assert timeline_png(commits, title="run", last=3) != timeline_png(commits, title="run")


def test_the_text_curve_rises_with_the_reward():
    rows = [line for line in reward_curve_text(range(10), [n / 10 for n in range(10)]).splitlines() if "|" in line]
    drawn = [row.split("|", 1)[1] for row in rows]
    dots = [[place for place, sign in enumerate(row) if sign not in " \u2800\u2847"] for row in drawn]
    places = [min(row) for row in dots if row and len(row) < 30]
    assert places == sorted(places, reverse=True)
    assert len(places) > 5


def test_one_value_is_a_text_curve_too():
    assert "iteration" in reward_curve_text([0], [0.5])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0], [1.0]), ([0.0, 3.0], [1.5, 1.5]), ([0.0, 0.0, 5.0, 0.0, 0.0], [5 / 3, 5 / 4, 1.0, 5 / 4, 5 / 3])],
)
def test_smoothing_takes_the_mean_of_what_is_near(values, expected):
    assert smoothed(values) == expected
