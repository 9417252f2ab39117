"""What `evaluate --ranking` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

AT_K = {"ndcg": "NDCG", "recall": "recall", "mrr": "MRR", "hit_rate": "hit rate"}


def ranking_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """The figures of rankings, for people."""
    k, bounds = ranking["k"], ranking["intervals"]
    seen = f" without what they watched in {' and '.join(ranking['excluded'])}"
    least = f" with {ranking['at_least']}" if ranking["at_least"] else ""
    yield (
        f"ranking by {ranking['task']}: {ranking['users']} users, all {ranking['items']} items"
        f"{seen if ranking['excluded'] else ''}; {ranking['relevant']} relevant{least}"
    )
    names = {**{name: f"{title}@{k}" for name, title in AT_K.items()}, "gauc": "GAUC"}
    names["popularity"] = "popularity"
    popular = ranking["baselines"]["popularity"]
    yield f"  {'':14} {'mean':>7}  {'95% interval':17}  by popularity alone"
    for name, title in names.items():
        interval = " - ".join(f"{bound:.4f}" for bound in bounds.get(name, []))
        yield f"  {title:14} {_number(ranking[name])}  {interval:17}  {_number(popular[name])}"
    yield f"  {'coverage':14} {_number(ranking['coverage'])}"
    for name, segment in ranking["segments"].items():
        if name.startswith("cold") and segment["users"]:
            figures = "  ".join(f"{title}@{k} {_number(segment[n])}" for n, title in AT_K.items())
            yield f"  {name.replace('_', ' '):14} {segment['users']} users  {figures}"


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.4f}"
