"""Negatives: how many, how they are drawn; logs of positives alone; the shares of the splits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import table
from data_prep.split import negatives
from data_prep.split.negatives import ByPopularity, HashedDraws, OneStream
from data_prep.split.randomness import key, mix, stream
from recsys_moe.schema import SPLITS, ConfigError
from tests.conftest import Command
from tests.data_prep.samples import chi_square, columns, frame, hashes, raw_rows, rows_of, save

IDS: dict[str, Any] = {"user": "who", "item": "what", "tasks": ["watch:binary"]}
DRAWN: dict[str, Any] = {**IDS, "negatives": "per-user"}


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_without_a_column_every_row_is_a_positive(engine: str, tmp_path: Path) -> None:
    data = frame()[["who", "what"]]
    options = {**DRAWN, "input": save(data, tmp_path / "x.csv"), "protocol": "hash"}
    schema = table.prepare(tmp_path / "out", engine=engine, **options)
    with_column = save(data.assign(seen=1), tmp_path / "seen.csv")
    named = {**options, "input": with_column, "tasks": ["watch:binary=seen"]}
    table.prepare(tmp_path / "named", **named)
    assert raw_rows(tmp_path / "out") == raw_rows(tmp_path / "named")
    assert sum(schema.labels[split]["watch"]["positive"] for split in SPLITS) == 40
    assert "--task watch:binary --negatives per-user" in schema.command


@pytest.mark.parametrize("protocol", ["paper", "hash", "time"])
@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
@pytest.mark.parametrize(("ratio", "each"), [(1.0, 4), (0.3, 2), (4, 16), (0.25, 1), (100, 36)])
def test_a_user_gets_the_ratio_rounded_up_or_all_that_is_left(
    ratio: float, each: int, distribution: str, protocol: str, tmp_path: Path
) -> None:
    """30 users with 4 of 40 items each. 4 * 0.3 = 1.2, and at most 40 - 4 are left."""
    n = np.arange(120)
    data = pd.DataFrame({"who": n % 30, "what": (n % 30 + 7 * (n // 30)) % 40, "when": 1 + n})
    source = save(data, tmp_path / "x.parquet")
    options = {**DRAWN, "negative_ratio": ratio, "negative_distribution": distribution}
    options |= {"input": source, "protocol": protocol, "timestamp": "when"}
    schema = table.prepare(tmp_path / "out", **options)
    rows = rows_of(tmp_path / "out")
    drawn = [row[:2] for row in rows if row[2] == 0]
    if protocol != "time":
        assert set(Counter(user for user, _ in drawn).values()) == {each}
        assert len(set(drawn)) == len(drawn)
        assert set(drawn).isdisjoint(row[:2] for row in rows if row[2] == 1)
        assert schema.report["missing_negatives"] == (30 * (400 - 36) if ratio == 100 else 0)
    train = columns(tmp_path / "out", "train")
    by = ["user_index", "item_index", *(["event"] if protocol == "time" else [])]
    pairs = list(zip(*(train[name] for name in by), strict=True))
    assert len(set(pairs)) == len(pairs)


def draws(kind: str, rows_of_item: np.ndarray, users: int) -> ByPopularity:
    each = mix(key(0, "x"), np.arange(users, dtype=np.uint64))
    return ByPopularity(
        OneStream(stream(0, "x")) if kind == "one stream" else HashedDraws(each), rows_of_item
    )


@pytest.mark.parametrize("kind", ["one stream", "hashed"])
@pytest.mark.parametrize("rounds", [64, 0], ids=["rejection", "grid"])
def test_popular_items_are_drawn_in_proportion_to_their_rows(
    rounds: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items with 1, 2, 3 and 4 rows, item 3 taken: 1/6, 2/6, 3/6 of 6,000 users."""
    monkeypatch.setattr(negatives, "MOST_ROUNDS", rounds)
    users, rows_of_item = 6000, np.array([1, 2, 3, 4])
    taken = np.arange(users) * 4 + 3
    drawn = negatives.draw(np.ones(users, np.int64), taken, 4, draws(kind, rows_of_item, users))
    counts = np.bincount(drawn % 4, minlength=4)
    assert counts[3] == 0
    # 2 degrees of freedom: 18.4 is the 99.99% point
    expected = np.array([1000, 2000, 3000])
    assert (((counts[:3] - expected) ** 2) / expected).sum() < 18.4


@pytest.mark.parametrize("kind", ["one stream", "hashed"])
@pytest.mark.parametrize("rounds", [64, 1, 0], ids=["rejection", "both", "grid"])
def test_the_second_item_is_drawn_from_what_the_first_left(
    rounds: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of items with 1, 2 and 3 rows: {0,1} with 1/6 * 2/5 + 2/6 * 1/4 = 0.15."""
    monkeypatch.setattr(negatives, "MOST_ROUNDS", rounds)
    users = 6000
    rows_of_item = np.array([1, 2, 3])
    drawn = negatives.draw(
        np.full(users, 2), np.array([], np.int64), 3, draws(kind, rows_of_item, users)
    )
    absent = np.bincount(3 - np.bincount(drawn // 3, weights=drawn % 3).astype(int), minlength=4)
    # {0,2}: 1/6 * 3/5 + 3/6 * 1/3 = 0.2667; {1,2}: 2/6 * 3/4 + 3/6 * 2/3 = 0.5833
    expected = users * np.array([0.58333, 0.26667, 0.15])
    assert ((absent[:3] - expected) ** 2 / expected).sum() < 18.4


def test_popularity_under_time_counts_only_what_came_before(tmp_path: Path) -> None:
    """Item 1 has most rows, all of them late: training draws it never, as it is not known."""
    n = np.arange(200)
    late = n >= 160
    item = np.where(late, 99, n % 20)
    data = pd.DataFrame({"who": n % 40, "what": item, "when": 1 + n})
    source = save(data, tmp_path / "x.csv")
    options = {**DRAWN, "protocol": "time", "timestamp": "when", "duplicates": "keep"}
    options |= {"negative_distribution": "popularity", "fractions": "0.8,0.1,0.1"}
    schema = table.prepare(tmp_path / "out", input=source, **options)
    positives = {split: schema.labels[split]["watch"]["positive"] for split in SPLITS}
    assert positives == {"train": 160, "val": 20, "test": 20}
    assert columns(tmp_path / "out", "items")["item"].index(99) == schema.item.trained
    assert 99 not in [row[1] for row in raw_rows(tmp_path / "out")["train"]]


def test_popular_items_are_negatives_more_often_on_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    item = (50 * rng.random(3000) ** 3).astype(int)
    data = pd.DataFrame({"who": rng.integers(0, 300, 3000), "what": item}).drop_duplicates()
    source, share = save(data, tmp_path / "x.csv"), {}
    for protocol in ("paper", "hash"):
        for distribution in ("uniform", "popularity"):
            out = tmp_path / f"{protocol}-{distribution}"
            options = {**DRAWN, "negative_distribution": distribution, "protocol": protocol}
            table.prepare(out, input=source, **options)
            rows = [row[1] for row in rows_of(out) if row[2] == 0]
            share[protocol, distribution] = np.mean([int(str(one)) < 10 for one in rows])
        assert share[protocol, "popularity"] > 1.5 * share[protocol, "uniform"]


@pytest.mark.parametrize("protocol", ["paper", "time"])
@pytest.mark.parametrize(("fractions", "sizes"), [
    ("0.8,0.1,0.1", [32, 4, 4]), ("0.7,0.1,0.2", [28, 4, 8]), ("1/2,1/4,1/4", [20, 10, 10]),
])  # fmt: skip
def test_the_shares_are_exact(
    fractions: str, sizes: list[int], protocol: str, tmp_path: Path
) -> None:
    source = save(frame(), tmp_path / "x.csv")
    options = {"protocol": protocol, "timestamp": "when", "fractions": fractions}
    ids = {**IDS, "tasks": ["watch:binary=clicked"]}
    schema = table.prepare(tmp_path / "out", input=source, **ids, **options)
    assert list(schema.rows.values()) == sizes
    assert f"--fractions {fractions}" in schema.command


def test_the_shares_of_hashes_are_the_same_in_all_engines(tmp_path: Path) -> None:
    n = np.arange(4000)
    source = save(pd.DataFrame({"who": n // 40, "what": n % 40}), tmp_path / "x.parquet")
    options = {**DRAWN, "input": source, "protocol": "hash", "fractions": "0.5,0.3,0.2"}
    options |= {"negative_ratio": 0.5}
    for engine in ("memory", "stream"):
        schema = table.prepare(tmp_path / engine, engine=engine, **options)
    assert hashes(tmp_path / "memory") == hashes(tmp_path / "stream")
    # no item is left for anyone; five standard errors: 5 sqrt(4000 * .3 * .7) = 145
    assert abs(schema.rows["val"] - 1200) < 145 and abs(schema.rows["test"] - 800) < 145


REFUSED = {
    "no negatives": ({"negatives": "none"}, "--task watch:binary has no column, so every row is a "
                     "positive: add --negatives per-user, or name the column"),
    "second": ({"tasks": ["watch:binary=x", "buy:binary"]},
               "--task buy:binary has no column, .*only the first may; name the column"),
    "regression": ({"tasks": ["stars:regression"]},
                   "--task stars:regression needs the column of its labels"),
    "ratio": ({"negative_ratio": 0.0}, "--negative-ratio must be above 0 .*got 0"),
    "ratio of none": ({"tasks": ["watch:binary=x"], "negatives": "none", "negative_ratio": 2.0},
                      "need --negatives per-user; add it"),
    "distribution": ({"negative_distribution": "popular"}, "did you mean 'popularity'"),
    "stream": ({"negative_distribution": "popularity", "engine": "stream", "protocol": "hash"},
               "--engine stream needs --negative-distribution uniform.*--engine memory"),
    "sum": ({"fractions": "0.8,0.1,0.2"}, "--fractions must be three numbers .*got '0.8,0.1,0.2'"),
    "zero": ({"fractions": "0.9,0.1,0"}, "--fractions must be three numbers above 0"),
    "exponent": ({"fractions": "1e-9999999999,0.5,0.5"}, "--fractions must be three numbers"),
    "one column": ({"user": "who", "item": "who"}, "--user and --item must be two columns"),
    "words": ({"fractions": "most"}, "--fractions must be three numbers above 0"),
    "leave-last": ({"fractions": "0.8,0.1,0.1", "protocol": "leave-last", "timestamp": "when"},
                   "--fractions must be omitted for --protocol leave-last"),
    "given": ({"fractions": "0.8,0.1,0.1", "input": None, **dict.fromkeys(SPLITS, Path("x.csv"))},
              "--fractions needs --input"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_together_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {**DRAWN, "input": save(frame(), tmp_path / "x.csv"), **options}
    with pytest.raises(ConfigError, match=message):
        table.prepare(tmp_path / "out", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize(
    ("cells", "count"), [(1, "31 positive of 31"), (0, "0 positive of 31"), ("", "0 positive of 0")]
)
def test_labels_of_one_class_are_warned_of(
    cells: object, count: str, command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = save(frame().assign(clicked=cells), tmp_path / "x.csv")
    words = ["--user", "who", "--item", "what", "--task", "watch:binary=clicked"]
    done = command("prepare", "table", *words, "--input", source, "--out", tmp_path / "out")
    assert done.exit_code == 0
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    wanted = f"train: task watch has labels of one class ({count}): it cannot be learned"
    assert warned[0].startswith(wanted) and len(warned) == 3
    assert ("--negatives per-user" in warned[0]) == (cells == 1)


def test_labels_of_two_classes_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table.prepare(tmp_path / "out", input=save(frame(), tmp_path / "x.csv"), **DRAWN)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_ratio_times_the_positives_is_not_rounded_up_for_its_last_bit() -> None:
    """100 * 0.07 is 7.000000000000001 in floats; 10 * 0.07 = 0.7 is 1 negative."""
    from data_prep.rows import Examples
    from data_prep.split.negatives import Negatives

    user = np.repeat([0, 1], [100, 10])
    rows = Examples(
        user=user, item=user, timestamp=user, labels={"y": np.ones(110, dtype=np.float32)}
    )
    assert Negatives(task="y", ratio=0.07).wanted(rows, user, 2).tolist() == [7, 1]


@st.composite
def interactions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """(wanted per user, taken keys, items): some users have nothing, some nearly everything."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    taken = draw(st.sets(st.integers(0, users * items - 1)))
    wanted = draw(st.lists(st.integers(0, items), min_size=users, max_size=users))
    return np.array(wanted), np.array(sorted(taken), dtype=np.int64), items


@given(interactions(), st.integers(0, 3))
def test_each_user_gets_the_wanted_number_or_all_that_is_free(
    case: tuple[np.ndarray, np.ndarray, int], seed: int
) -> None:
    wanted, taken, items = case
    drawn = negatives.draw(wanted, taken, items, OneStream(stream(seed, "negatives")))
    free = items - np.bincount(taken // items, minlength=len(wanted))
    got = np.bincount(drawn // items, minlength=len(wanted))
    assert got.tolist() == np.minimum(wanted, free).tolist()
    assert len(set(drawn.tolist())) == len(drawn)
    assert set(drawn.tolist()).isdisjoint(taken.tolist())
    again = negatives.draw(wanted, taken, items, OneStream(stream(seed, "negatives")))
    assert drawn.tolist() == again.tolist()


@pytest.mark.parametrize("kind", ["one stream", "hashed"])
@pytest.mark.parametrize(
    ("positives", "wanted"),
    [(2, 2), (2, 7), (7, 2)],
    ids=["light user, rejection", "most of the free items, grid", "heavy user, grid"],
)
def test_every_free_item_is_drawn_equally_often(positives: int, wanted: int, kind: str) -> None:
    items, users = 12, 4000
    each = mix(key(0, "uniform"), np.arange(users, dtype=np.uint64))
    draws = HashedDraws(each) if kind == "hashed" else OneStream(stream(0, "uniform"))
    taken = (np.arange(users)[:, None] * items + np.arange(positives)).ravel()
    drawn = negatives.draw(np.full(users, wanted), taken, items, draws)
    counts = np.bincount(drawn % items, minlength=items)[positives:]
    assert counts.sum() == users * wanted
    # 12 - positives cells, so at most 9 degrees of freedom: 99.99% of draws stay below 33.7.
    # Sampling without replacement only makes the counts more even than that.
    assert chi_square(counts, users * wanted / (items - positives)) < 33.7


def test_every_pair_of_items_is_drawn_equally_often() -> None:
    users, items = 6000, 5
    drawn = negatives.draw(
        np.full(users, 2), np.array([], np.int64), items, OneStream(stream(1, "pairs"))
    )
    first, second = np.sort(drawn).reshape(users, 2).T  # sorted keys: two per user, in order
    pairs = np.bincount((first % items) * items + second % items)
    pairs = pairs[pairs > 0]
    assert len(pairs) == 10  # 5 * 4 / 2
    # 9 degrees of freedom: 33.7 is the 99.99% point
    assert chi_square(pairs, users / 10) < 33.7


def test_blocks_of_heavy_users_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "GRID_CELLS", 25)  # two users of 10 items at a time
    taken = np.array([u * 10 + i for u in range(7) for i in range(u)])
    drawn = negatives.draw(np.full(7, 10), taken, 10, OneStream(stream(0, "blocks")))
    assert np.bincount(drawn // 10).tolist() == [10 - u for u in range(7)]
    assert set(drawn.tolist()).isdisjoint(taken.tolist())


def test_no_items_give_no_negatives() -> None:
    assert (
        len(negatives.draw(np.array([3]), np.array([], np.int64), 0, OneStream(stream(0, "none"))))
        == 0
    )
