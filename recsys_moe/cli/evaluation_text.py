"""Evaluations as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from recsys_moe.kinds import metric_title

TITLES = {"predicted_over_observed": "predicted / observed"}


def table(result: dict[str, Any], title: str) -> str:
    """An evaluation as text."""
    lines = [f"{title}: loss {result['loss']:.4f}"]
    for task, metrics in result["tasks"].items():
        numbers = [f"{metric_title(n)} {v:.4f}" for n, v in metrics.items() if isinstance(v, float)]
        visits = ""
        if task in result["routing"]:
            visits = f", {result['routing'][task]['experts_per_example']:.2f} experts an example"
        lines.append(f"  {task:8} {'  '.join(numbers)}  ({metrics['rows']} rows{visits})")
        lines.append(f"  {'':8} {_baselines(result['baselines'][task], metrics['rows'])}")
    if len(result["routing"]) > 1:
        visited = result["experts_per_example"]
        lines.append(f"  experts visited for all tasks: {visited:.2f} an example")
    lines += list(_unknown(result.get("segments", {})))
    if "ranking" in result:
        lines += ["", *ranking_lines(result["ranking"])]
    if "periods" in result:
        lines += ["", *period_lines(result)]
    return "\n".join(lines)


def _unknown(segments: dict[str, Any]) -> Iterator[str]:
    """A line per segment of rows with an unknown user or item, or with a category of a context."""
    for name, segment in segments.items():
        if name == "both_known":
            continue
        first = ((task, *next(iter(found.items()))) for task, found in segment["tasks"].items())
        shown = [f"{task} {metric_title(key)} {v:.4f}" for task, key, v in first if v is not None]
        title = name if "=" in name else name.replace("_", " ")
        yield f"  {title} ({segment['rows']} rows): {', '.join(shown) or '-'}"


def _baselines(named: dict[str, dict[str, float | None]], rows: int) -> str:
    """The baselines below a model's metrics on so many labelled rows."""
    numbers = [
        f"{name.replace('_', ' ')} {metric_title(metric)} {value:.4f}"
        for name, metrics in named.items()
        for metric, value in metrics.items()
        if value is not None
    ]
    none = "none, all labels are of one class" if rows else "none, no labelled rows"
    return f"baseline: {', '.join(numbers) or none}"


EACH = {"user": "", "last": ", the last of each user", "successive": ", a list for each"}
"""What the relevant items are, by `--lists`."""


def ranking_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """A ranking report as text."""
    from recsys_moe.inference.evaluation.ranking_report import titles

    least = f" with {ranking['at_least']}" if ranking["at_least"] else ""
    in_turn, each = ranking["lists"] != "user", EACH[ranking["lists"]]
    seen = f" except {'' if in_turn else 'positives of '}{' and '.join(ranking['excluded'])}"
    all_or_some = f"{ranking['retrieve']} of" if "retrieve" in ranking else "all"
    yield (
        f"top-N evaluation by {ranking['task']}: {ranking['users']} users, {ranking['relevant']} "
        f"relevant items{least}{each}, {all_or_some} {ranking['items']} items ranked"
        f"{seen if ranking['excluded'] else ''}"
    )
    popular = ranking["baselines"]["popularity"]
    yield f"  {'':15} {'mean':>7}  {'95% interval':15}  baseline: popularity"
    for name, title in titles(ranking["k"]).items():
        interval = " - ".join(f"{bound:.4f}" for bound in ranking["intervals"].get(name, []))
        numbers = _number(ranking[name]), f"{interval:15}", _number(popular[name])
        yield f"  {title:15} {'  '.join(numbers)}"
    for name in ("cold_users", "cold_items"):
        segment, names = ranking["segments"][name], titles(ranking["k"]).items()
        if segment["users"]:
            shown = [f"{t} {_number(segment[f]).strip()}" for f, t in names if f in segment]
            yield f"  {name.replace('_', ' ')} ({segment['users']} users): {', '.join(shown)}"
    yield from _past(ranking)
    for count, why in (
        (ranking["relevant_of_unknown_users"], "of unknown users"),
        (ranking["relevant_excluded"], "whose item the user had interacted with before"),
    ):
        if count:
            yield f"  left out: {count} relevant rows {why}"


def _past(ranking: dict[str, Any]) -> Iterator[str]:
    """What lists see of the past, and what they are by the log's order of equal times."""
    if "history" in ranking:
        yield f"  history: {ranking['history']}; tie rule: {ranking['tie_rule']}"
    if "by_log" in ranking:
        names, found = _titles(ranking), ranking["by_log"]
        shown = [f"{title} {_number(found[name]).strip()}" for name, title in names.items()]
        yield f"  by tie rule log: {', '.join(shown)}"


def _titles(ranking: dict[str, Any]) -> dict[str, str]:
    """Of the figures of `by_log`."""
    from recsys_moe.inference.evaluation.ranking_report import titles

    return {n: t for n, t in titles(ranking["k"]).items() if n in ranking["by_log"]}


def sample_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """The ranking of some users as `fit` prints it."""
    name = f"NDCG@{ranking['k']}"
    users = f"{ranking['users']:,} of {ranking['of_users']:,} users"
    users = f"the last event of {users}" if ranking["lists"] == "last" else users
    ranked = f"{ranking['items']:,} items ranked by {ranking['task']} for {users}"
    yield f"  {'ranking':8} {name} {ranking['ndcg']:.4f}  ({ranked})"
    popular = ranking["baselines"]["popularity"]["ndcg"]
    yield f"  {'':8} baseline: popularity {name} {popular:.4f}"


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.4f}"


def period_lines(result: dict[str, Any]) -> Iterator[str]:
    """A table per task: a line per period, a column per metric."""
    periods = result["periods"]
    for task in periods[0]["tasks"] if periods else ():
        found = [one["tasks"][task] for one in periods]
        names = [name for name in found[0] if name != "rows"]
        titles = [f"{TITLES.get(name, metric_title(name)):>6}" for name in names]
        yield f"{task} by period"
        yield f"  {'from (UTC)':16}  {'rows':>8}  {'  '.join(titles)}"
        for period, metrics in zip(periods, found, strict=True):
            cells = [
                f"{_number(metrics[name]).strip():>{len(title)}}"
                for name, title in zip(names, titles, strict=True)
            ]
            yield f"  {_moment(period['first'])}  {metrics['rows']:8}  {'  '.join(cells)}"
    if without := result["rows_without_time"]:
        yield f"  in no period: {without} of {result['rows']} rows, which have no time"


def _moment(seconds: int) -> str:
    """Date and minute, or the seconds themselves where they are beyond the calendar."""
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:16}"
