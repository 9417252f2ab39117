"""What `evaluate --ranking` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def ranking_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """A ranking report as text."""
    from recsys_moe.inference.evaluation.ranking_report import titles

    least = f" with {ranking['at_least']}" if ranking["at_least"] else ""
    seen = f" except positives of {' and '.join(ranking['excluded'])}"
    yield (
        f"top-N evaluation by {ranking['task']}: {ranking['users']} users, {ranking['relevant']} "
        f"relevant items{least}, all {ranking['items']} items ranked"
        f"{seen if ranking['excluded'] else ''}"
    )
    popular = ranking["baselines"]["popularity"]
    yield f"  {'':12} {'mean':>7}  {'95% interval':15}  baseline: popularity"
    for name, title in titles(ranking["k"]).items():
        interval = " - ".join(f"{bound:.4f}" for bound in ranking["intervals"].get(name, []))
        numbers = _number(ranking[name]), f"{interval:15}", _number(popular[name])
        yield f"  {title:12} {'  '.join(numbers)}"
    for name in ("cold_users", "cold_items"):
        segment, names = ranking["segments"][name], titles(ranking["k"]).items()
        if segment["users"]:
            shown = [f"{t} {_number(segment[f]).strip()}" for f, t in names if f in segment]
            yield f"  {name.replace('_', ' ')} ({segment['users']} users): {', '.join(shown)}"
    for count, why in (
        (ranking["relevant_of_unknown_users"], "of unknown users"),
        (ranking["relevant_excluded"], "whose item the user had interacted with before"),
    ):
        if count:
            yield f"  left out: {count} relevant rows {why}"


def sample_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """The ranking of some users as `fit` prints it."""
    name = f"NDCG@{ranking['k']}"
    users = f"{ranking['users']:,} of {ranking['of_users']:,} users"
    ranked = f"{ranking['items']:,} items ranked by {ranking['task']} for {users}"
    yield f"  {'ranking':8} {name} {ranking['ndcg']:.4f}  ({ranked})"
    popular = ranking["baselines"]["popularity"]["ndcg"]
    yield f"  {'':8} baseline: popularity {name} {popular:.4f}"


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.4f}"
