"""Graphs of few nodes: exporters take seconds for each hundred."""

from __future__ import annotations

import pytest

from recsys_moe.artifact import graphs
from recsys_moe.model.encoders.mixers import decay, lru

CHUNK = 2
"""Of a recurrence, so that a few events are more; the graph has a node for each of its places."""


def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export with short chunks, and time one call of what was exported."""
    monkeypatch.setattr(graphs, "LATENCY_RUNS", 1)
    for mixer in (decay, lru):
        monkeypatch.setattr(mixer, "CHUNK", CHUNK)
