"""Tick labels of logarithmic axes."""

from __future__ import annotations

import pytest

from recsys_moe.lab.report.plots import canvas
from research.plain_log import plain_log


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0.001, 1.0), {"0.001", "0.01", "0.1", "1"}),
        ((1, 200), {"1", "10", "100"}),
        ((2, 5), {"3"}),
    ],
)
def test_labels_of_a_logarithmic_axis_are_plain_numbers(
    ends: tuple[float, float], expected: set[str]
) -> None:
    with canvas() as (figure, grid):
        axis = grid[0][0].yaxis
        grid[0][0].plot([0, 1], ends)
        grid[0][0].set_yscale("log")
        plain_log(axis)
        figure.draw_without_rendering()
        labels = {label.get_text() for label in axis.get_ticklabels(which="both")} - {""}
    assert expected <= labels
    assert not any("$" in label for label in labels)
    assert all(float(label) > 0 for label in labels)
