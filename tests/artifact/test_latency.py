"""The latency of a graph is measured in bounded time."""

from __future__ import annotations

import pytest
import torch

from recsys_moe.artifact import graphs


def test_the_latency_of_a_slow_model_is_the_median_of_fewer_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, rows = [0.0], list[int]()

    def runner(user: torch.Tensor) -> list[torch.Tensor]:
        clock[0] += 0.001 if len(user) == 1 else 1.5
        rows.append(len(user))
        return []

    monkeypatch.setattr(graphs.time, "perf_counter", lambda: clock[0])
    assert graphs.latency(runner, torch.arange(1000)) == {"1": 1.0, "1000": 1500.0}
    # 3 calls to warm up and 20; 4 of 1.5 seconds are 6, more than 5.
    assert (rows.count(1), rows.count(1000)) == (23, 4)
