"""A table of one's own: file types, ids, splits, negatives, items, weights, repeated pairs."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.inference.ranking.item_filters import matching_items
from recsys_moe.schema import SPLITS, DataError, Schema
from tests.data_prep.samples import IDS, columns, frame, hashes, raw_rows, rows_of, save


def test_one_file_is_split_and_every_label_kept(tmp_path: Path) -> None:
    source = save(frame(), tmp_path / "clicks.csv")
    schema = table.prepare(tmp_path / "out", input=source, **IDS)
    # test: ceil(0.1 * 40) = 4; val: ceil(0.125 * 36) = 5
    assert schema.rows == {"train": 31, "val": 5, "test": 4}
    expected = [
        (who, what, float(clicked), None if np.isnan(stars) else stars)
        for who, what, clicked, stars in frame().iloc[:, :4].itertuples(index=False)
    ]
    assert rows_of(tmp_path / "out") == sorted(expected, key=str)
    assert [(task.name, task.weight, task.low) for task in schema.tasks] == [
        ("watch", 0.5, None),
        ("rating", 0.5, None),
    ]
    assert schema.vocabulary == "all"
    assert Schema.load(tmp_path / "out") == schema


@pytest.mark.parametrize("name", ["x.tsv", "x.parquet", "x.csv.gz", "x.tsv.gz", "folder"])
def test_every_kind_of_file_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    table.prepare(tmp_path / "csv", input=save(frame(), tmp_path / "x.csv"), **IDS)
    if name == "folder":
        source = tmp_path / "folder"
        save(frame().iloc[:15], source / "a.csv")
        save(frame().iloc[15:], source / "b.parquet")
        (source / "README.md").write_text("not data")
    else:
        source = save(frame(), tmp_path / name)
    table.prepare(tmp_path / "out", input=source, **IDS)
    assert raw_rows(tmp_path / "out") == raw_rows(tmp_path / "csv")


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_the_separator_of_a_csv_is_detected(separator: str, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "x.csv", sep=separator, index=False)
    schema = table.prepare(tmp_path / "out", input=tmp_path / "x.csv", **IDS)
    assert sum(schema.rows.values()) == 40


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (["007", "7", "12"], "string"),
        (["7", "-3", "12"], "int64"),
        (["7", "9223372036854775808", "12"], "string"),
        (["7", "1e0", "+12"], "string"),
        (["NA", "null", "12"], "string"),
        ([" 7", "7", "\u00e9"], "string"),
    ],
)
def test_ids_stay_what_they_are(ids: list[str], kind: str, tmp_path: Path) -> None:
    data = frame(30)
    data["what"] = [ids[n % 3] for n in range(30)]
    data["who"] = [n // 3 for n in range(30)]
    schema = table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.csv"), **IDS)
    assert (schema.user.id_type, schema.item.id_type) == ("int64", kind)
    wanted = sorted(int(one) for one in ids) if kind == "int64" else sorted(ids)
    assert columns(tmp_path / "out", "items")["item"] == wanted


def test_three_files_keep_their_split_and_training_makes_the_vocabulary(tmp_path: Path) -> None:
    data = frame()
    data.loc[36:, "who"] = "cold_user"
    parts = {"train": data.iloc[:30], "val": data.iloc[30:36], "test": data.iloc[36:]}
    files = {name: save(part, tmp_path / f"{name}.csv") for name, part in parts.items()}
    schema = table.prepare(tmp_path / "out", **files, **IDS)
    assert schema.rows == {"train": 30, "val": 6, "test": 4}
    assert (schema.protocol, schema.vocabulary) == ("given", "train")
    assert columns(tmp_path / "out", "users")["user"].index("cold_user") == schema.user.trained
    assert set(columns(tmp_path / "out", "test")["user_index"]) == {schema.user.trained}
    assert [source.name for source in schema.sources] == ["train.csv", "val.csv", "test.csv"]


@pytest.mark.parametrize("spelling", [("1", "0"), ("true", "False"), ("1.0", "0.0"), (" 1 ", "0 ")])
def test_binary_labels_may_be_spelled_in_several_ways(
    spelling: tuple[str, str], tmp_path: Path
) -> None:
    data = frame()
    data["clicked"] = np.where(data["clicked"] == 1, *spelling).astype(object)
    data.loc[5, "clicked"] = ""
    schema = table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.csv"), **IDS)
    watch = [schema.labels[split]["watch"] for split in SPLITS]
    assert sum(one["positive"] for one in watch) == 14  # rows 0, 3, ..., 39
    assert sum(one["labelled"] for one in watch) == 39


def test_labelled_zeros_get_no_negatives(tmp_path: Path) -> None:
    source = save(frame(), tmp_path / "x.csv")
    schema = table.prepare(tmp_path / "out", input=source, negatives="per-user", **IDS)
    assert sum(schema.rows.values()) == 40 + 14  # one for each of the 14 clicks


@pytest.mark.parametrize("engine", ["memory", "stream", "given"])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_an_empty_cell_is_a_missing_label(name: str, engine: str, tmp_path: Path) -> None:
    data = frame()
    data["clicked"] = data["clicked"].where(data["clicked"] == 1)  # 14 clicks, 26 empty cells
    options: dict[str, Any] = {"input": save(data, tmp_path / name), **IDS}
    if engine == "given":
        halves = zip(SPLITS, (data[:20], data[20:30], data[30:]), strict=True)
        options["input"] = None
        options |= {split: save(part, tmp_path / f"{split}-{name}") for split, part in halves}
    else:
        options |= {"engine": engine, "protocol": "hash"}
    schema = table.prepare(tmp_path / "out", negatives="per-user", **options)
    assert sum(schema.rows.values()) == 40 + 14
    watch = [schema.labels[split]["watch"] for split in SPLITS]
    assert sum(one["positive"] for one in watch) == 14
    assert sum(one["labelled"] for one in watch) == 14 + 14
    assert schema.report["missing_negatives"] == 0
    label = [row[2] for row in rows_of(tmp_path / "out")]
    assert (label.count(1.0), label.count(0.0), label.count(None)) == (14, 14, 26)


def test_what_is_known_about_items_comes_along(tmp_path: Path) -> None:
    source = save(frame(), tmp_path / "x.csv")
    about = pd.DataFrame({"title": ["Nine", "Zero"], "what": ["009", "000"], "price": [9, 0]})
    items = save(about, tmp_path / "items.csv")
    table.prepare(tmp_path / "out", input=source, items=items, **IDS)
    known = columns(tmp_path / "out", "items")
    assert list(known) == ["item", "item_index", "title", "price"]
    assert known["title"] == ["Zero", *[None] * 8, "Nine"]
    save(pd.concat([about, about]), items)
    with pytest.raises(DataError, match=r"items\.csv: item '009' has more than one row"):
        table.prepare(tmp_path / "b", input=source, items=items, **IDS)


def test_plain_numbers_about_items_can_be_compared_and_nothing_else_changes(
    tmp_path: Path,
) -> None:
    about = {
        "what": ["000", "001", "002"],
        "title": ["1984", "", "Two"],
        "year": ["1999", "", "2001"],
        "price": ["9.50", "12", "-1e3"],
        "code": ["007", "8", "9"],
        "long": ["12345678901234567890", "1", "2"],
        "none": ["", "", ""],
    }
    items = save(pd.DataFrame(about), tmp_path / "items.csv")
    source = save(frame(), tmp_path / "x.csv")
    table.prepare(tmp_path / "out", input=source, items=items, **IDS)
    known = pq.read_table(tmp_path / "out" / "items.parquet")
    found = {name: values[:3] for name, values in known.to_pydict().items()}
    assert found["title"] == ["1984", None, "Two"]
    assert found["year"] == [1999, None, 2001] and found["price"] == [9.5, 12.0, -1000.0]
    assert found["code"] == about["code"] and found["long"] == about["long"]
    assert found["none"] == [None] * 3
    assert matching_items(known, ["year>=2000"]).nonzero()[:, 0].tolist() == [2]
    assert matching_items(known, ["price<10", "year<2000"]).nonzero()[:, 0].tolist() == [0]
    save(pd.DataFrame(about), tmp_path / "items.parquet")  # says itself what a column is
    parquet = tmp_path / "items.parquet"
    table.prepare(tmp_path / "typed", input=source, items=parquet, **IDS)
    kept = pq.read_table(tmp_path / "typed" / "items.parquet").to_pydict()
    assert kept["year"][:3] == about["year"]


def test_a_row_keeps_its_weight_and_an_empty_cell_and_a_negative_weigh_one(tmp_path: Path) -> None:
    data = frame().assign(mass=np.arange(40) / 4)
    data.loc[3, "mass"] = np.nan  # u3 with item 006
    source = save(data, tmp_path / "x.csv")
    out = tmp_path / "out"
    schema = table.prepare(out, input=source, weight="mass", negatives="per-user", **IDS)
    assert schema.weight == "weight" and Schema.load(out) == schema
    users, items = columns(out, "users")["user"], columns(out, "items")["item"]
    found = {}
    for split in SPLITS:
        part = columns(out, split)
        pairs = zip(part["user_index"], part["item_index"], part["weight"], strict=True)
        found |= {(users[u], items[i]): weight for u, i, weight in pairs}
    known = {
        (who, what): 1.0 if np.isnan(mass) else mass
        for who, what, mass in data[["who", "what", "mass"]].itertuples(index=False)
    }
    assert {pair: found[pair] for pair in known} == known
    drawn = [weight for pair, weight in found.items() if pair not in known]
    assert drawn == [1.0] * 14  # one for each of the 14 clicks


def test_training_labels_are_counted_with_weights_too(tmp_path: Path) -> None:
    """Clicks 1, 0, 0 with weights 3, 1, 0: 3 positive of 4. Stars 2, 4, 9: mean (6 + 4) / 4 = 2.5,
    variance (3 x 0.25 + 2.25) / 4 = 0.75. Without them: 1 of 3, mean 5."""
    labels = {"clicked": [1, 0, 0], "stars": [2, 4, 9], "mass": [3, 1, 0]}
    rows = pd.DataFrame({"who": [*"abc"], "what": [*"xyz"], **labels})
    given = {split: save(rows, tmp_path / f"{split}.csv") for split in SPLITS}
    tasks = ["watch:binary=clicked", "rating:regression=stars"]
    names = {"user": "who", "item": "what", "tasks": tasks, "weight": "mass"}
    options = {"duplicates": "keep", **names}
    counts = table.prepare(tmp_path / "out", **given, **options).labels
    watch, rating = counts["train"]["watch"], counts["train"]["rating"]
    assert (watch["positive"], watch["labelled"]) == (1, 3)
    assert (watch["weighted_positive"], watch["weighted_labelled"]) == (3, 4)
    assert (rating["mean"], rating["weighted_mean"]) == (5, 2.5)
    assert rating["weighted_std"] == pytest.approx(0.75**0.5)
    assert not any("weighted" in name for name in [*counts["val"]["watch"], *counts["test"]])


@pytest.mark.parametrize("engine", ["stream", "dask"])
def test_weights_are_the_same_in_every_engine(engine: str, tmp_path: Path) -> None:
    source = save(frame().assign(mass=np.arange(40) / 4), tmp_path / "x.parquet")
    options = {**IDS, "input": source, "weight": "mass", "protocol": "hash"}
    options |= {"negatives": "per-user"}
    table.prepare(tmp_path / "memory", **options)
    here = {"scheduler": "synchronous"} if engine == "dask" else {}
    table.prepare(tmp_path / engine, engine=engine, **here, **options)
    assert hashes(tmp_path / "memory") == hashes(tmp_path / engine)
    assert sum(columns(tmp_path / engine, "train")["weight"]) > 0


@pytest.mark.parametrize("cell", ["-1", "inf", "nan?", "1e39"])
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_a_wrong_weight_is_named(engine: str, cell: str, tmp_path: Path) -> None:
    data = frame().assign(mass="2")
    data.loc[4, "mass"] = cell
    source = save(data, tmp_path / "x.csv")
    place = "line 6" if engine == "memory" else "row 5"
    message = rf"x\.csv, {place}: mass .*>= 0 .*got '{cell[:3]}"
    with pytest.raises(DataError, match=message):
        table.prepare(
            tmp_path / "o", input=source, weight="mass", engine=engine, protocol="hash", **IDS
        )
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("negatives", ["none", "per-user"])
def test_weights_that_are_all_0_are_refused(engine: str, negatives: str, tmp_path: Path) -> None:
    source = save(frame().assign(mass=0), tmp_path / "x.csv")
    options: dict[str, Any] = {"negatives": negatives, "engine": engine, "protocol": "hash", **IDS}
    with pytest.raises(DataError, match="train: .*watch, rating .*weight 0"):
        table.prepare(tmp_path / "out", input=source, weight="mass", **options)
    assert not (tmp_path / "out").exists()


def test_a_task_whose_rows_all_weigh_0_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clicked or not is learned from rows without stars."""
    data = frame().assign(mass=1)
    data.loc[data["stars"].notna(), "mass"] = 0
    data.loc[1, "clicked"] = 1
    source = save(data, tmp_path / "x.csv")
    table.prepare(tmp_path / "out", input=source, weight="mass", fractions="0.9,0.05,0.05", **IDS)
    told = [one for one in (r.getMessage() for r in caplog.records) if "weight 0" in one]
    assert len(told) == 1 and "task rating" in told[0]


TASK: dict[str, Any] = {"user": "who", "item": "what", "tasks": ["watch:binary=clicked"]}
KEEP: dict[str, Any] = {"duplicates": "keep", "timestamp": "when", **TASK}


def log(rows: int = 2000) -> pd.DataFrame:
    """40 users and 20 items: 2,000 rows of at most 800 pairs."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": rng.integers(0, 40, rows),
            "what": rng.integers(0, 20, rows),
            "clicked": rng.integers(0, 2, rows),
            "when": np.arange(rows),
        }
    )


def splits_of_pairs(out: Path) -> dict[tuple[object, ...], set[str]]:
    found: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for split, rows in raw_rows(out).items():
        for row in rows:
            found[row[:2]].add(split)
    return found


@pytest.mark.parametrize("negatives", ["none", "per-user"])
@pytest.mark.parametrize("protocol", ["paper", "hash"])
def test_the_rows_of_a_pair_are_in_one_split(protocol: str, negatives: str, tmp_path: Path) -> None:
    source = save(log(), tmp_path / "x.csv")
    options = {"protocol": protocol, "negatives": negatives, **KEEP}
    schema = table.prepare(tmp_path / "out", input=source, **options)
    found = splits_of_pairs(tmp_path / "out")
    assert {len(splits) for splits in found.values()} == {1}
    drawn = schema.report.get("missing_negatives", 0)
    positives = int(log()["clicked"].sum())
    wanted = 2000 + (positives - drawn if negatives == "per-user" else 0)
    assert sum(schema.rows.values()) == wanted


def test_shares_are_those_of_pairs_by_the_label_of_the_first(tmp_path: Path) -> None:
    table.prepare(tmp_path / "out", input=save(log(), tmp_path / "x.csv"), **KEEP)
    found = splits_of_pairs(tmp_path / "out")
    counts = {name: sum(splits == {name} for splits in found.values()) for name in SPLITS}
    pairs = len(log().drop_duplicates(["who", "what"]))
    test = -(-pairs // 10)  # a tenth rounded up, then an eighth of the rest rounded up
    assert counts["test"] == test and counts["val"] == -(-(pairs - test) // 8)


@pytest.mark.parametrize("protocol", ["paper", "hash"])
def test_without_repeats_keep_changes_no_row(protocol: str, tmp_path: Path) -> None:
    source = save(log().drop_duplicates(["who", "what"]), tmp_path / "x.csv")
    for name in ("keep", "error"):
        options = {**KEEP, "duplicates": name, "protocol": protocol}
        table.prepare(tmp_path / name, input=source, negatives="per-user", **options)
    one, other = hashes(tmp_path / "keep"), hashes(tmp_path / "error")
    assert {name for name in one if one[name] != other[name]} == {"schema.json"}  # the command


def test_repeated_pairs_across_splits_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = log(100).assign(what=0)
    parts = {"train": data[:60], "val": data[60:80], "test": data[80:]}
    files = {name: save(part, tmp_path / f"{name}.csv") for name, part in parts.items()}
    train = set(zip(parts["train"]["who"], parts["train"]["what"], strict=True))
    again = {
        name: sum(
            pair in train for pair in zip(parts[name]["who"], parts[name]["what"], strict=True)
        )
        for name in ("val", "test")
    }
    assert min(again.values()) > 0
    caplog.set_level(logging.INFO)
    table.prepare(tmp_path / "given", **files, **KEEP)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    for name, count in again.items():
        rows = f"{name}: {count} of 20 rows have a (user, item) pair of the training rows"
        assert sum(rows in one for one in told) == 1
    caplog.clear()
    table.prepare(tmp_path / "t", input=save(data, tmp_path / "x.csv"), protocol="time", **KEEP)
    told = [r.getMessage() for r in caplog.records if "pair of the training" in r.getMessage()]
    assert len(told) == 2 and not any("warning" in one for one in told)
