"""A table of one's own: every file type, ids kept as they are, splits, negatives, items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.inference.ranking.item_filters import matching_items
from recsys_moe.schema import SPLITS, DataError, Schema
from tests.data_prep.samples import IDS, columns, frame, raw_rows, rows_of, save


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
def test_the_separator_of_a_csv_is_told_from_its_header(separator: str, tmp_path: Path) -> None:
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
    assert set(columns(tmp_path / "out", "test")["user_index"]) == {schema.user.size}
    assert "cold_user" not in columns(tmp_path / "out", "users")["user"]
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


def test_labelled_zeros_are_no_positives_to_match(tmp_path: Path) -> None:
    source = save(frame(), tmp_path / "x.csv")
    schema = table.prepare(tmp_path / "out", input=source, negatives="per-user", **IDS)
    assert sum(schema.rows.values()) == 40 + 14  # one for each of the 14 clicks


@pytest.mark.parametrize("engine", ["memory", "stream", "given"])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_an_empty_cell_is_no_positive_to_match_and_no_label(
    name: str, engine: str, tmp_path: Path
) -> None:
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
