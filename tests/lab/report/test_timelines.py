"""Experts by the number of events before a row, against hand arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recsys_moe.lab.report.genres import FEWEST
from recsys_moe.lab.report.timelines import routing_by_events
from tests.lab.report.conftest import report


def test_shares_are_of_the_rows_of_a_group_with_an_expert() -> None:
    # 60 rows without events: 45 to expert 0, 15 to 1. 80 rows after 1 to 4: 20 to 0, 60 to 2, and
    # 5 without an expert. 49 rows after 5 to 9 are too few. 50 rows after 500 or more: all to 2.
    counts = [45, 15, 20, 60, 5, 49, 50]
    assert counts[5] == FEWEST - 1
    before = torch.tensor([0, 0, 1, 4, 2, 7, 900]).repeat_interleave(torch.tensor(counts))
    top = torch.tensor([0, 1, 0, 2, -1, 0, 2]).repeat_interleave(torch.tensor(counts))
    found = routing_by_events("watch", before, top, experts=3)
    assert found is not None
    assert (found.groups, found.rows) == (["0", "1-4", "500+"], [60, 80, 50])
    assert found.share == [[0.75, 0.25, 0], [0.25, 0, 0], [0, 0.75, 1]]
    assert found.moved == pytest.approx((0.75 + 0.25 + 1) / 2)


def test_one_group_is_no_timeline() -> None:
    before, top = torch.zeros(200), torch.zeros(200).long()
    assert routing_by_events("watch", before, top, experts=2) is None


@pytest.mark.slow
def test_the_report_of_a_model_that_reads_events_has_the_figure(
    timed_run: Path, tmp_path: Path
) -> None:
    out = report(timed_run, tmp_path / "report", split="train")
    data = json.loads((out / "figures" / "events-watch.json").read_text())["data"]
    assert len(data["groups"]) == len(data["rows"]) > 1
    for column in zip(*data["share"], strict=True):
        assert sum(column) == pytest.approx(1)
    assert "by the number of the user's events" in (out / "report.html").read_text()
