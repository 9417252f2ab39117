"""Features that cannot be used: the place, the value, the remedy in one line; nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.schema import ConfigError, DataError
from tests.data_prep.samples import columns, hashes, save
from tests.data_prep.test_features import ASKED, ITEMS, USERS, entities, rows

ALL_ROWS = rows(("u2", "a", 9), ("u2", "c", 9))


def prepared(folder: Path, **options: Any) -> Any:
    """Over an output that is there, which must stay as it is when this is refused."""
    save(ALL_ROWS, folder / "log.csv")
    given = {**ASKED, "input": folder / "log.csv", **entities(folder), "protocol": "hash"}
    return table.prepare(folder / "out", **{**given, "fractions": "0.4,0.3,0.3", **options})


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_this_can_be_prepared(engine: str, tmp_path: Path) -> None:
    schema = prepared(tmp_path, engine=engine)
    assert schema.report == {
        "dropped_repeats": 0,
        "unused_user_features": 1,  # u9
        "unused_item_features": 0,
        "users_without_features": 0,
        "items_without_features": 0,
    }


OPTIONS = {
    "no kind": ("user_feature", "gender=sex", "must be NAME:KIND=COLUMN, .*got 'gender=sex'"),
    "unknown kind": ("user_feature", "gender:category=sex", "KIND must be one of .*'categorical'"),
    "no name": ("context", ":numeric=hour", "--context must be NAME:KIND=COLUMN"),
    "no column": ("item_feature", "year:numeric=", "--item-feature must be NAME:KIND=COLUMN"),
    "sep of one": ("item_feature", "y:categorical=year:sep=,", "y: only kind multi takes sep"),
    "twice": ("user_feature", "gender:numeric=years", "names must differ, got 'gender' twice"),
    "of two entities": ("context", "genres:categorical=hour", "got 'genres' twice; users, items"),
    "like a column": ("item_feature", "title:categorical=genres", "a feature must not .*'title'"),
    "like a task": ("user_feature", "watch:numeric=years", "a feature must not .*got 'watch'"),
    "like a prediction": ("context", "watch_calibrated:numeric=hour", "'watch_calibrated'"),
    "the label": ("context", "c:categorical=clicked", "c must not .*'clicked', .*--task watch"),
}  # fmt: skip


@pytest.mark.parametrize(("option", "spec", "message"), OPTIONS.values(), ids=OPTIONS)
def test_a_wrong_feature_option_is_refused(
    option: str, spec: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        prepared(tmp_path, **{option: [*ASKED[option], spec]})
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "out").exists()


FILES = {
    "no file": (
        {"user_features": None},
        "--user-feature gender needs a feature file; add --user-feat",
    ),
    "no feature": ({"item_feature": None}, "--item-features needs at least one --item-feature"),
}


@pytest.mark.parametrize(("options", "message"), FILES.values(), ids=FILES)
def test_a_file_goes_with_its_features(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def changed(data: list[tuple[Any, ...]], row: int, column: int, cell: Any) -> list[tuple[Any, ...]]:
    lines = [list(line) for line in data]
    lines[row][column] = cell
    return [tuple(line) for line in lines]


NUMBER = "must be a finite number .or empty, if missing., got "
LIST = "must be categories separated by '.', none of them empty .or an empty cell., got "
CELLS = {
    "text": ("users", 1, 2, "old", "users.csv, line 3: years " + NUMBER + "'old'"),
    "infinity": ("users", 2, 2, "inf", "users.csv, line 4: years " + NUMBER + "'inf'"),
    "nan": ("items", 0, 2, "nan", "items.csv, line 2: year " + NUMBER + "'nan'"),
    "huge": ("items", 0, 2, "1e39", "items.csv, line 2: year " + NUMBER + "'1e39'"),
    "empty part": ("items", 1, 1, "War||Drama", "items.csv, line 3: genres " + LIST + "'War||Dr"),
    "no last part": ("items", 2, 1, "War|", "items.csv, line 4: genres " + LIST + r"'War\|'"),
    "blank part": ("items", 2, 1, "War| ", "items.csv, line 4: genres " + LIST),
    "line break": ("users", 0, 1, "f\nm", "users.csv, line 3: sex must be on one line"),
    "no id": ("users", 0, 0, "", "users.csv, line 2: who must not be empty"),
}


@pytest.mark.parametrize(("name", "row", "column", "cell", "message"), CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_a_wrong_cell_is_named_and_the_output_stays(
    name: str, row: int, column: int, cell: str, message: str, engine: str, tmp_path: Path
) -> None:
    prepared(tmp_path)
    before = hashes(tmp_path / "out")
    data = changed(USERS if name == "users" else ITEMS, row, column, cell)
    names = ["who", "sex", "years"] if name == "users" else ["what", "genres", "year"]
    file = save(pd.DataFrame(data, columns=names), tmp_path / "other" / f"{name}.csv")
    with pytest.raises(DataError, match=message) as failure:
        prepared(tmp_path, **{f"{name[:-1]}_features": file}, force=True, engine=engine)
    assert "\n" not in str(failure.value)
    assert hashes(tmp_path / "out") == before
    assert {p.name for p in tmp_path.iterdir()} == {
        "out", "other", "log.csv", "users.csv", "items.csv"
    }  # fmt: skip


def test_a_wrong_cell_of_the_context_is_named_or_its_row_left_out(tmp_path: Path) -> None:
    data = ALL_ROWS.astype(object)
    data.loc[1, "hour"] = "late"
    save(data, tmp_path / "late.csv")
    options = {"input": tmp_path / "late.csv", "context": ["hour:numeric=hour"]}
    with pytest.raises(DataError, match=r"late\.csv, line 3: hour .*got 'late'"):
        prepared(tmp_path, **options)
    assert prepared(tmp_path, **options, skip_bad_rows=True).report["skipped_rows"] == 1


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"users\.csv: column 'sexe' is missing.*'sex'"):
        prepared(tmp_path, user_feature=["gender:categorical=sexe"])
    with pytest.raises(DataError, match=r"log\.csv: column 'our' is missing.*'hour'"):
        prepared(tmp_path, context=["hour:categorical=our"])


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (("u1", "m", "40.0"), None),
        (("u1", "", 40), r"users\.csv, line 6: user 'u1' has other features than in .*csv, line 3"),
        (("u1", "m", None), "user 'u1' has other features than in"),
    ],
)
def test_an_id_may_be_there_again_with_the_same_features(
    again: tuple[Any, ...], message: str | None, tmp_path: Path
) -> None:
    users = pd.DataFrame([*USERS, again], columns=["who", "sex", "years"])
    file = save(users, tmp_path / "again" / "users.csv")
    if message is None:
        assert prepared(tmp_path, user_features=file).user_features[0].size == 2
        return
    with pytest.raises(DataError, match=message + ".*; leave one row per user"):
        prepared(tmp_path, user_features=file)


def test_the_order_of_a_list_says_nothing(tmp_path: Path) -> None:
    items = pd.DataFrame([*ITEMS, ("a", "Action|Drama|Action", 1990)])
    items.columns = pd.Index(["what", "genres", "year"])
    prepared(tmp_path, item_features=save(items, tmp_path / "again.csv"))
    assert columns(tmp_path / "out", "items")["feature:genres"][0] == [0, 2]


def test_a_feature_without_a_value_in_training_is_refused(tmp_path: Path) -> None:
    users = pd.DataFrame(USERS, columns=["who", "sex", "years"])
    file = save(users.assign(years=None), tmp_path / "none" / "users.csv")
    with pytest.raises(DataError, match="'age' .*user in"):
        prepared(tmp_path, user_features=file)
    save(ALL_ROWS.assign(hour=None), tmp_path / "none.csv")
    with pytest.raises(DataError, match="'hour' .*training rows"):
        prepared(tmp_path, input=tmp_path / "none.csv")
    assert not (tmp_path / "out").exists()


def test_lists_and_numbers_of_parquet(tmp_path: Path) -> None:
    items = {
        "what": ["a", "b", "c"],
        "genres": pa.array([["War", "Drama"], [], None], pa.list_(pa.string())),
        "year": pa.array([1, None, 3], pa.float32()),
        "is_new": [True, None, False],
        "code": pa.array([7.0, None, 8.0]),
    }
    pq.write_table(pa.table(items), tmp_path / "items.parquet")
    more = ["is_new:categorical=is_new", "code:categorical=code"]
    asked = [*ASKED["item_feature"], *more]
    prepared(tmp_path, item_features=tmp_path / "items.parquet", item_feature=asked)
    found = pq.read_table(tmp_path / "out" / "features.parquet").to_pydict()
    assert found["value"][2:] == ["Drama", "War", "false", "true", "7", "8", "9"]
    items["genres"] = pa.array([["War", None], ["x"], ["y"]], pa.list_(pa.string()))
    pq.write_table(pa.table(items), tmp_path / "items.parquet")
    with pytest.raises(DataError, match=r"items\.parquet, row 1: genres .*categories"):
        prepared(tmp_path, item_features=tmp_path / "items.parquet", force=True)
