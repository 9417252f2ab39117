"""torch-rechub's MMoE and PLE as they come, beside the defaults: the sizes of its examples, its
trainer, and the mean rating where there is none, as it knows no missing label.

Its package is on the path of the study; see research/accuracy/requirements.txt. Of a log with
more tasks it is given the first binary one and the first regression.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recsys_moe.config.past import Past
from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import Rows, load_columns
from recsys_moe.data.streaming import labelled
from recsys_moe.inference.evaluation.ranking import LENGTH, top_lists
from recsys_moe.inference.evaluation.ranking_metrics import means
from recsys_moe.inference.evaluation.ranking_report import ahead, list_figures
from recsys_moe.inference.evaluation.ranking_rows import ranking_rows
from recsys_moe.inference.evaluation.ranking_wanted import Wanted
from recsys_moe.schema import Schema
from research.accuracy.peers import PEERS
from research.accuracy.rows import Part, Scores, TrainingRows
from research.defaults_judge import Ahead, bounds, first_tasks, of_lists

NAMES = {"rechub-mmoe": "mmoe", "rechub-ple": "ple"}
MOST_ROWS = 10**9


class Data(NamedTuple):
    """A prepared folder, its schema, and the places of the two tasks by figure."""

    folder: Path
    schema: Schema
    tasks: dict[str, int]


def opened(folder: Path) -> Data:
    schema = Schema.load(folder)
    return Data(folder, schema, {name: first for name, first, _ in first_tasks(schema)})


def fitted(name: str, data: Data, seed: int) -> Scores:
    """Scores of every pair, the unknown user and item included (U + 1, I + 1)."""
    from research.accuracy.scorers import rechub

    sizes = data.schema.user.size + 1, data.schema.item.size + 1
    rows = TrainingRows(_part(data, "train"), _part(data, "val"), *sizes)
    fit = {"mmoe": rechub.mmoe, "ple": rechub.ple}[NAMES[name]]
    return fit(rows, PEERS[NAMES[name]].settings[0], seed)()


def _part(data: Data, split: str) -> Part:
    columns = load_columns(data.folder, data.schema, split)
    none_N = np.full(len(columns.user), np.nan, dtype=np.float32)
    labels = {name: columns.labels[:, place].numpy() for name, place in data.tasks.items()}
    ids = columns.user.long().numpy(), columns.item.long().numpy()
    return Part(*ids, labels["auc"], labels.get("mse", none_N))


def judged(scores: Scores, data: Data, split: str = "test") -> dict[str, Ahead]:
    """As `research.defaults_judge.judge`."""
    train, rows = (load_columns(data.folder, data.schema, one) for one in ("train", split))
    found = {}
    for name, place, of in first_tasks(data.schema):
        scored = scores.watch if name == "auc" else scores.rating
        assert scored is not None
        found[name] = of(*_scored(scored, rows, place, bounds(data.schema, place, train)))
    return found | {"ndcg": _lists(scores, data, split)}


def _scored(scored_UI: np.ndarray, rows: Rows, task: int, bound: object) -> tuple[np.ndarray, ...]:
    """Score, label and bound of the rows with a label."""
    (one,) = labelled(rows, task)
    user_N, item_N = one.user.numpy(), one.item.numpy()
    return scored_UI[user_N, item_N].astype(float), one.label.numpy(), bound(user_N, item_N)


def _lists(scores: Scores, data: Data, split: str) -> Ahead:
    """By lists as the models of the log are."""
    past, items = Past(lists="last" if data.schema.events else None), data.schema.item.size
    rows = ranking_rows(
        data.folder,
        data.schema,
        split,
        wanted=Wanted(data.tasks["auc"]),
        most=MOST_ROWS,
        seen=past.seen(parse_config({}), data.folder, data.schema),
        only_last=past.lists == "last",
    )
    watch_UI = torch.from_numpy(np.ascontiguousarray(scores.watch))[:, :items]
    popularity_I = rows.positives_I.double()
    own_UK = top_lists(lambda users: watch_UI[users.user], rows, LENGTH)
    popular_UK = top_lists(lambda users: popularity_I.expand(users.rows, -1), rows, LENGTH)
    own, popular = (means(list_figures(top_UK, rows)) for top_UK in (own_UK, popular_UK))
    popular |= {"ahead": ahead(own_UK, popular_UK, rows)}
    return of_lists({**own, "baselines": {"popularity": popular}})
