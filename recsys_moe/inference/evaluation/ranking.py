"""Top-N evaluation: ranks the whole catalogue for every user of a split.

Axes: U users with a relevant item, K ranks, I items of the catalogue, N labelled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.evaluate import data_of
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.encoders import chosen_context, numbers_a_row
from recsys_moe.config.past import Past
from recsys_moe.data.streaming import rows_within
from recsys_moe.inference.evaluation.ranking_metrics import SEED, means
from recsys_moe.inference.evaluation.ranking_report import (
    NONE,
    ahead,
    coverage,
    described,
    figures,
    list_figures,
)
from recsys_moe.inference.evaluation.ranking_rows import RankingRows, ranking_rows
from recsys_moe.inference.evaluation.ranking_wanted import (
    NothingRelevantError,
    Wanted,
    wanted_rows,
)
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.largest import largest
from recsys_moe.inference.scoring.pair_scores import ROWS_PER_BATCH
from recsys_moe.inference.threads import USERS_AT_ONCE, one_thread_each
from recsys_moe.kinds import positive_task
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema, check_split

LENGTH = 10
"""Of a list, unless another one is asked for."""
WHOLE = Past()
MOST_USERS = 1000
"""Of a sample: the standard error of their mean NDCG is about .01."""
Logits = Callable[[Request], Tensor]
"""Users and contexts (U,) -> what their items are ranked by (U, I)."""
Retrieved = Callable[[Request, Sequence[Tensor]], Iterator[tuple[Tensor, Tensor]]]
"""Lists and what each excludes -> for each the items to rank and what they are ranked by."""


def evaluate_ranking(
    path: Path,
    split: str,
    data: Path | None = None,
    *,
    k: int = LENGTH,
    task: str | None = None,
    relevant: str | None = None,
    past: Past = WHOLE,
    retrieve: int | None = None,
    progress: Callable[[int], None] = lambda users: None,
) -> dict[str, Any]:
    """Metrics of the top k items for each user with a relevant item in `split`.

    Relevant items have label 1 of `task` (default: the first binary task) and, with `relevant`
    ("rating>=4"), such a label too. Lists omit the user's positives of earlier splits. `past`:
    what lists and rows see of it, and whether each relevant row has a list, which omits what its
    user had before. `retrieve`: that of `Predictor.recommend`. `progress` receives the number of
    lists done. Raises ConfigError, DataError.
    """
    check_split("--split", split)
    predictor = Predictor(load_artifact(path))
    past.check(predictor.artifact.config, split)
    folder, schema = data_of(path, predictor.artifact, data)
    wanted = wanted_rows(schema, k, task, relevant)
    retrieved = _retrieved(predictor, wanted.task, retrieve, k)
    rows = _rows(predictor, folder, schema, split, wanted=wanted, past=past)
    logits, popularity = _rankers(predictor, rows, wanted)
    score_NL = _asked_logits(predictor, rows)
    top_UK = top_lists(logits, rows, k, progress, retrieved)
    found = described(top_UK, score_NL[:, predictor.columns[wanted.task]], rows)
    if past.tie_rule == "shuffle":
        by_log = replace(past, tie_rule="log")
        again = _rows(predictor, folder, schema, split, wanted=wanted, past=by_log)
        again_UK = top_lists(_rankers(predictor, again, wanted)[0], again, k, retrieved=retrieved)
        found["by_log"] = means(list_figures(again_UK, again))
    return {
        "task": schema.tasks[wanted.task].name,
        "at_least": relevant,
        "k": k,
        "lists": past.lists or "user",
        "excluded": ["the events before"] if past.has_rows else list(rows.excluded_splits),
        **past.described(predictor.artifact.config),
        **({} if retrieve is None else {"retrieve": retrieve}),
        **rows.counts,
        **found,
        "baselines": {"popularity": _popular(popularity, rows, top_UK)},
    }


def _popular(popularity: Logits, rows: RankingRows, top_UK: Tensor) -> dict[str, Any]:
    """Figures of lists by popularity, and how often those of the model are ahead."""
    popular_UK = top_lists(popularity, rows, top_UK.shape[1])
    judged: dict[str, Any] = means(figures(popular_UK, rows.popularity(rows.labelled.item), rows))
    judged |= {"coverage": coverage(popular_UK, rows), "ahead": ahead(top_UK, popular_UK, rows)}
    return judged


def _asked_logits(predictor: Predictor, rows: RankingRows) -> Tensor:
    """(N, L) of the labelled rows."""
    asked, context_NC, before = rows.labelled, rows.labelled_context, rows.before
    if before is None:
        return predictor.pair_logits(asked.user, asked.item, context_NC)
    parts = []
    order_N = before.labelled_N2[:, 1].argsort(stable=True)  # rows of a batch share windows
    for place_B in order_N.split(ROWS_PER_BATCH):
        context_BC = None if context_NC is None else context_NC[place_B]
        pairs = asked.user[place_B], asked.item[place_B], context_BC
        parts.append(predictor.pair_logits(*pairs, *before.of_labelled(place_B)))
    return torch.cat(parts)[order_N.argsort(stable=True)]


def sample_ranking(
    path: Path, split: str, data: Path | None = None, *, most_pairs: int
) -> dict[str, Any] | None:
    """NDCG for a random sample of users of `split`, and that of the popularity baseline.

    As `evaluate_ranking` has them, for as many users as `most_pairs` scores of the whole catalogue
    allow, from 1 to MOST_USERS; of models that read events the lists `last`, as these predict the
    next event. None where the data have no binary task or nothing is relevant.
    """
    predictor = Predictor(load_artifact(path))
    folder, schema = data_of(path, predictor.artifact, data)
    past = Past(lists="last" if predictor.artifact.config.model.reads_events else None)
    if positive_task(schema.tasks) is None:
        return None
    wanted = wanted_rows(schema, min(LENGTH, schema.item.size))
    if not schema.counts(split, schema.tasks[wanted.task].name, "positive")["positive"]:
        return None
    try:
        rows = _rows(predictor, folder, schema, split, wanted=wanted, past=past)
    except NothingRelevantError:
        return None
    lists_per_user = len(rows.users) / len(rows.users.unique())
    affordable = int(most_pairs / lists_per_user) // schema.item.size
    few = _some_users(rows, max(1, min(MOST_USERS, affordable)))
    k = min(LENGTH, schema.item.size)
    model, popular = (
        means(list_figures(top_lists(by, few, k), few))["ndcg"]
        for by in _rankers(predictor, few, wanted)
    )
    return {
        "task": schema.tasks[wanted.task].name,
        "k": k,
        "lists": past.lists or "user",
        "items": schema.item.size,
        "users": len(few.users.unique()),
        "of_users": len(rows.users.unique()),
        "ndcg": model,
        "baselines": {"popularity": {"ndcg": popular}},
    }


def _some_users(rows: RankingRows, most: int) -> RankingRows:
    """Without the relevant items of all users but `most`, drawn at random, the same every time."""
    generator = torch.Generator().manual_seed(SEED)
    known_U = rows.users.unique()
    users_U = known_U[torch.randperm(len(known_U), generator=generator)[:most]]
    return rows.only(torch.isin(rows.relevant.user, users_U))


def _rows(
    predictor: Predictor,
    folder: Path,
    schema: Schema,
    split: str,
    *,
    wanted: Wanted,
    past: Past = WHOLE,
) -> RankingRows:
    config, trained = predictor.artifact.config, predictor.artifact.schema
    context = chosen_context(config, trained)
    most = rows_within(schema, config.data.max_memory_mb, context=numbers_a_row(config, trained))
    read: dict[str, Any] = {"context": context, "history": past.of(config, folder, schema, split)}
    read |= {"seen": past.seen(config, folder, schema), "only_last": past.lists == "last"}
    return ranking_rows(folder, schema, split, wanted=wanted, most=most, **read)


def _rankers(predictor: Predictor, rows: RankingRows, wanted: Wanted) -> tuple[Logits, Logits]:
    """Logits of the model and of the popularity baseline."""
    popularity_I = rows.positives_I.double()
    return (
        lambda users: predictor.catalogue_logits(
            users.user, wanted.task, users.context, users.events, users.moment
        ),
        lambda users: popularity_I.expand(users.rows, -1),
    )


def _retrieved(predictor: Predictor, task: int, retrieve: int | None, k: int) -> Retrieved | None:
    count = predictor.checked_retrieve(retrieve, k, task)
    if count is None:
        return None
    return lambda users, out: predictor.retrieved_logits(users, task, count, out)


def top_lists(
    logits: Logits,
    rows: RankingRows,
    k: int,
    progress: Callable[[int], None] = lambda users: None,
    retrieved: Retrieved | None = None,
) -> Tensor:
    """The k best items (U, K) of each of `rows.lists`, best first, none that is excluded.

    NONE at the end where fewer are left; among equals the lower index wins. `retrieved`: of some
    items, in place of `logits`.
    """
    choose = retrieved or partial(_left, logits)

    def best(start: int) -> Tensor:
        users = rows.asked(slice(start, start + USERS_AT_ONCE))
        top_UK = torch.full((users.rows, k), NONE)
        out = [rows.excluded_items(start + row) for row in range(users.rows)]
        for top_K, (item_N, logits_N) in zip(top_UK, choose(users, out), strict=True):
            best_K = item_N[largest(logits_N, k)]
            top_K[: len(best_K)] = best_K
        return top_UK

    starts = range(0, rows.lists.rows, USERS_AT_ONCE)
    parts = []
    with one_thread_each() as pool:
        for part_UK in pool.map(best, starts):
            parts.append(part_UK)
            progress(len(part_UK))
    return torch.cat(parts)


def _left(logits: Logits, users: Request, out: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """All items but the excluded ones."""
    for logits_I, out_N in zip(logits(users), out, strict=True):
        open_I = torch.ones(len(logits_I), dtype=torch.bool)
        open_I[out_N[out_N < len(open_I)]] = False
        item_N = open_I.nonzero()[:, 0]
        yield item_N, logits_I[item_N]
