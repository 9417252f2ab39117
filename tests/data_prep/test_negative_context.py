"""Sampled negatives take the time and the context of a positive of their user."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import table
from data_prep.split import negatives
from recsys_moe.schema import SPLITS
from tests.data_prep.samples import save

OPTIONS: dict[str, Any] = {
    "user": "who",
    "item": "what",
    "tasks": ["watch:binary"],
    "negatives": "per-user",
    "timestamp": "when",
    "context": ["hour:categorical=hour", "price:numeric=price"],
}


def log(users: int = 40, each: int = 10, items: int = 100) -> pd.DataFrame:
    """Positives whose times are all different, and from which hour and price follow."""
    rng = np.random.default_rng(0)
    what = np.concatenate([rng.permutation(items)[:each] for _ in range(users)])
    when = 1_000_000 + rng.permutation(users * each)
    who = np.repeat(np.arange(users), each)
    data = pd.DataFrame({"who": who, "what": what, "when": when, "price": when % 7})
    return data.assign(hour=[f"h{n % 5}" for n in when])


def prepared(out: Path, data: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """All rows as they were written, with their split."""
    source = save(data, out.parent / f"{out.name}.parquet")
    table.prepare(out, input=source, **{**OPTIONS, **options})
    return pd.concat([pq.read_table(out / n).to_pandas().assign(split=n) for n in SPLITS])


@pytest.mark.parametrize("protocol", ["paper", "hash", "time", "leave-last"])
def test_each_positive_of_a_user_lends_its_time_and_context_once(
    protocol: str, tmp_path: Path
) -> None:
    """As many negatives as positives: of a user, or (by time) of a user in a split, but for the
    first row of the log, at which there is no other item."""
    rows = prepared(tmp_path / "out", log(), protocol=protocol)
    by = ["user_index"] if protocol in ("paper", "hash") else ["user_index", "split"]
    columns = [*by, "timestamp", "feature:hour", "feature:price"]
    positives, drawn = (
        Counter(rows.loc[rows.watch == label, columns].itertuples(index=False, name=None))
        for label in (1, 0)
    )
    assert len(positives) == 400
    first = Counter(row for row in positives if row[-3] == 1_000_000)
    assert drawn == (positives if protocol in ("paper", "hash") else positives - first)


def test_a_context_does_not_tell_the_item_of_a_negative(tmp_path: Path) -> None:
    """Items and times both ascend in the log; among 400 negatives a rank correlation beyond 0.2
    is four deviations of 1 / sqrt(400)."""
    data = log().sort_values(["who", "what"])
    data["when"] = 1_000_000 + np.arange(len(data)) % 10
    for protocol in ("paper", "hash"):
        rows = prepared(tmp_path / protocol, data, protocol=protocol)
        for label, expected in ((1, 1.0), (0, 0.0)):
            some = rows[rows.watch == label]
            found = some["item_index"].corr(some["timestamp"], method="spearman")
            assert abs(found - expected) < 0.2, (protocol, label)


def test_a_ratio_below_1_takes_no_particular_positives(tmp_path: Path) -> None:
    """Half as many negatives: of 200 some 100 come from the first half of each user's log."""
    data = log()
    data["price"] = np.arange(len(data)) % 10 < 5
    rows = prepared(tmp_path / "out", data, negative_ratio=0.5, context=["early:categorical=price"])
    assert 0.3 < rows.loc[rows.watch == 0, "feature:early"].mean() < 0.7


def test_rows_without_time_and_context_have_negatives_without(tmp_path: Path) -> None:
    rows = prepared(tmp_path / "out", log(), timestamp=None, context=[])
    assert "timestamp" not in rows and not any(name.startswith("feature:") for name in rows)


@pytest.mark.parametrize("protocol", ["paper", "hash"])
def test_which_items_are_drawn_does_not_depend_on_the_context(
    protocol: str, tmp_path: Path
) -> None:
    drawn = []
    for name, more in (("with", {}), ("without", {"timestamp": None, "context": []})):
        rows = prepared(tmp_path / name, log(), protocol=protocol, **more)
        drawn.append(rows[["user_index", "item_index", "watch", "split"]].to_numpy().tolist())
    assert drawn[0] == drawn[1]


@given(
    owner=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    more=st.lists(st.integers(0, 40), max_size=40),
    seed=st.integers(0, 99),
)
def test_negatives_come_from_positives_of_their_user_as_evenly_as_it_goes(
    owner: list[int], more: list[int], seed: int
) -> None:
    users, positives = np.array(owner), np.arange(len(owner)) * 3
    wanted = np.array([owner[n % len(owner)] for n in more], dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(owner))
    found = negatives.drawn_for(wanted, positives, users, order)
    assert (users[found // 3] == wanted).all()
    times = Counter(found.tolist())
    for user in set(wanted.tolist()):
        counts = [times[3 * n] for n, one in enumerate(owner) if one == user]
        assert max(counts) - min(counts) <= 1
