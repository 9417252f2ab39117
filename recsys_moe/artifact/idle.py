"""Idle experts: one definition for the page, the report and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

IDLE = 0.1
"""A task spares an expert that gets at most this fraction of an even share of its choices."""
IDLE_WORDS = f"an expert is idle if it gets at most {IDLE:.0%} of an even share in every task"


def spared_experts(load: Sequence[float]) -> list[int]:
    """Experts that a task spares. `load`: per expert its choices, or any share of them."""
    most = IDLE * sum(load) / max(len(load), 1)
    return [expert for expert, choices in enumerate(load) if choices <= most]


def idle_experts(loads: Iterable[Sequence[float]]) -> list[int]:
    """Experts that every task spares, ascending; none without a task."""
    spared = [set(spared_experts(load)) for load in loads]
    return sorted(set.intersection(*spared)) if spared else []
