"""A prepared folder cut in time: rows go by their time, ids that train lacks are told apart."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from data_prep.cut import PreparedLog
from recsys_moe.errors import DataError
from recsys_moe.schema import SPLITS, Schema
from tests.lab.backtest.drift import MINUTE, ROWS, drifting, log


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drifting(tmp_path_factory.mktemp("drift") / "data")


def rows_of(folder: Path, split: str) -> pd.DataFrame:
    """A split with the raw ids of its rows."""
    rows = pd.concat(pq.read_table(part).to_pandas() for part in (folder / split).glob("*"))
    for name in ("user", "item"):
        ids = pq.read_table(folder / f"{name}s.parquet").to_pandas()
        assert ids[f"{name}_index"].tolist() == [*range(len(ids))]
        rows[name] = rows[f"{name}_index"].map(ids[name])
    return rows.sort_values("timestamp")


def test_every_row_goes_where_its_time_says_with_its_labels(whole: Path, tmp_path: Path) -> None:
    schema = PreparedLog(whole).cut(tmp_path / "cut", 500 * MINUTE, 600 * MINUTE)
    assert schema == Schema.load(tmp_path / "cut")
    assert schema.rows["train"] + schema.rows["val"] == 500 and schema.rows["test"] == 100
    assert 10 < schema.rows["val"] < 40  # one of 20 rows, about
    splits = {name: rows_of(tmp_path / "cut", name) for name in SPLITS}
    assert splits["test"]["timestamp"].tolist() == [MINUTE * n for n in range(500, 600)]
    found = pd.concat(splits.values()).sort_values("timestamp")
    columns = ["user", "item", "clicked", "timestamp"]
    wanted = log()[:600].rename(columns={"time": "timestamp"})
    assert (found[columns[:2]].to_numpy() == wanted[columns[:2]].to_numpy()).all()
    assert found["click"].tolist() == wanted["clicked"].tolist()
    assert found["event"].tolist() == wanted.groupby("user").cumcount().tolist()
    positive = splits["train"]["click"].sum()
    assert schema.labels["train"]["click"]["positive"] == positive


def test_the_same_rows_are_of_val_at_every_cut(whole: Path, tmp_path: Path) -> None:
    opened = PreparedLog(whole)
    for n, start in enumerate((300, 400)):
        opened.cut(tmp_path / str(n), start * MINUTE)
    early, late = (set(rows_of(tmp_path / str(n), "val")["timestamp"]) for n in (0, 1))
    assert early == {time for time in late if time < 300 * MINUTE}
    assert Schema.load(tmp_path / "1").rows["test"] == ROWS - 400  # to the end


def test_ids_that_only_later_rows_have_are_not_of_the_vocabulary(
    whole: Path, tmp_path: Path
) -> None:
    schema = PreparedLog(whole).cut(tmp_path / "cut", 30 * MINUTE)
    train, test = (rows_of(tmp_path / "cut", name) for name in ("train", "test"))
    known = train["user"].nunique()
    assert schema.user.trained == train["user_index"].max() + 1 == known < 40
    assert schema.user.size == 40 and schema.vocabulary == "train"


def test_a_cut_that_leaves_a_split_empty_is_refused_and_writes_nothing(
    whole: Path, tmp_path: Path
) -> None:
    opened = PreparedLog(whole)
    with pytest.raises(DataError, match="the train split .* no rows; choose another --start"):
        opened.cut(tmp_path / "cut", 0)
    with pytest.raises(DataError, match="the test split"):
        opened.cut(tmp_path / "cut", ROWS * MINUTE)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_new_ids_share_an_index_is_refused(whole: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(whole, old)
    schema = Schema.load(old)
    fewer = replace(schema, user=replace(schema.user, size=30, trained=30))
    (old / "schema.json").write_text(fewer.to_json())
    with pytest.raises(DataError, match="every user must have an index, .* prepare the data again"):
        PreparedLog(old)
