"""`recsys_moe.prepare`: what it writes of a DataFrame is what the command writes of its Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import recsys_moe
from data_prep.table import prepare as from_files
from recsys_moe.schema import ConfigError, DataError

COLUMNS: dict[str, Any] = {"user": "visitor", "item": "page", "tasks": {"click": "binary=clicked"}}


def log(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """Clicks and seconds spent of 40 visitors on 30 pages, each pair once, some cells empty."""
    rng = np.random.default_rng(seed)
    pair = rng.choice(40 * 30, rows, replace=False)
    frame = pd.DataFrame({"visitor": [f"v{one}" for one in pair // 30], "page": pair % 30})
    frame["clicked"] = rng.integers(0, 2, rows)
    frame["seconds"] = np.where(frame.clicked == 1, rng.gamma(2, 20, rows).round(1), np.nan)
    frame["time"] = 1_700_000_000 + rng.integers(0, 10**6, rows)
    return frame


def content(folder: Path) -> dict[str, bytes]:
    """Bytes of all files; of the schema all but `sources`, which names files."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    schema = json.loads(found["schema.json"])
    del schema["sources"]
    return {**found, "schema.json": json.dumps(schema).encode()}


def refused(frame: Any, tmp_path: Path, **options: Any) -> str:
    """The one line that it is refused with; nothing is written."""
    with pytest.raises((ConfigError, DataError)) as caught:
        recsys_moe.prepare(frame, **{**COLUMNS, **options}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


class Stream:
    """What has the Arrow PyCapsule interface and nothing else, as a DuckDB result."""

    def __init__(self, table: pa.Table) -> None:
        self.__arrow_c_stream__ = table.__arrow_c_stream__


class Interchange:
    """What has the interchange protocol and nothing else, as older libraries."""

    def __init__(self, table: pa.Table) -> None:
        self.__dataframe__ = table.__dataframe__


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def as_polars(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").DataFrame({n: frame[n].tolist() for n in frame})


def as_duckdb(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("duckdb").from_arrow(arrow(frame)).order("time - time")


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "arrow": arrow,
    "chunks": lambda frame: pa.concat_tables([arrow(frame[:150]), arrow(frame[150:])]),
    "batch": lambda frame: arrow(frame).to_batches()[0],
    "reader": lambda frame: arrow(frame).to_reader(max_chunksize=100),
    "stream": lambda frame: Stream(arrow(frame)),
    "interchange": lambda frame: Interchange(arrow(frame)),
    "polars": as_polars,
    "duckdb": as_duckdb,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_any_library_is_prepared_as_its_parquet_file(kind: str, tmp_path: Path) -> None:
    frame = log()
    frame.to_parquet(tmp_path / "log.parquet")
    options: dict[str, Any] = {"protocol": "time", "negatives": "per-user", "duplicates": "last"}
    tasks = ["click:binary=clicked", "seconds:regression=seconds"]
    columns = {"user": "visitor", "item": "page", "timestamp": "time"}
    from_files(tmp_path / "file", input=tmp_path / "log.parquet", **columns, tasks=tasks, **options)
    schema = recsys_moe.prepare(
        KINDS[kind](frame),
        user="visitor",
        item="page",
        tasks={"click": "binary=clicked", "seconds": ("regression", "seconds")},
        time="time",
        out=tmp_path / "frame",
        **options,
    )
    assert content(tmp_path / "frame") == content(tmp_path / "file")
    assert schema.sources == () and sum(schema.rows.values()) >= len(frame)


def test_a_path_is_prepared_as_by_the_command(tmp_path: Path) -> None:
    log().to_csv(tmp_path / "log.csv", index=False)
    place = tmp_path / "log.csv"
    recsys_moe.prepare(str(place), **COLUMNS, weight="time", out=tmp_path / "here")
    tasks = ["click:binary=clicked"]
    from_files(
        tmp_path / "there", input=place, user="visitor", item="page", tasks=tasks, weight="time"
    )
    for path in (tmp_path / "there").rglob("*.*"):
        assert (
            path.read_bytes()
            == (tmp_path / "here" / path.relative_to(tmp_path / "there")).read_bytes()
        )


def test_frames_of_features_titles_and_splits_are_read_as_files(tmp_path: Path) -> None:
    frame = log()
    pages = pd.DataFrame({"page": range(30), "topic": list("abcdef") * 5})
    titles = pd.DataFrame({"page": range(30), "title": [f"Page {one}" for one in range(30)]})
    parts = {"train": frame[:300], "val": frame[300:350], "test": frame[350:]}
    more: dict[str, Any] = {"item_features": pages, "items": titles}
    for name, one in {**parts, **more}.items():
        one.to_parquet(tmp_path / f"{name}.parquet")
    features = {"topic": ("categorical", "topic")}
    given = {**parts, **more}
    recsys_moe.prepare(**given, item_feature=features, **COLUMNS, out=tmp_path / "frames")
    files = {name: tmp_path / f"{name}.parquet" for name in given}
    recsys_moe.prepare(**files, item_feature=features, **COLUMNS, out=tmp_path / "files")
    assert content(tmp_path / "frames") == content(tmp_path / "files")


def test_the_index_of_pandas_is_a_column_if_it_has_a_name(tmp_path: Path) -> None:
    recsys_moe.prepare(log().set_index("visitor"), **COLUMNS, out=tmp_path / "index")
    recsys_moe.prepare(log(), **COLUMNS, out=tmp_path / "column")
    assert content(tmp_path / "index") == content(tmp_path / "column")


def views(frame: pd.DataFrame) -> pa.Table:
    """As Polars hands over text and categories."""
    coded = pa.array(frame.clicked.astype(str)).dictionary_encode()
    names = coded.dictionary.cast(pa.string_view())
    clicked = pa.DictionaryArray.from_arrays(coded.indices, names)
    table = arrow(frame).set_column(2, "clicked", pa.chunked_array([clicked[:50], clicked[50:]]))
    return table.set_column(0, "visitor", table["visitor"].cast(pa.string_view()))


def tuples(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(pd.MultiIndex.from_product([["a"], frame.columns]), axis=1)


TYPES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "categories": lambda f: f.astype({"visitor": "category", "page": "category"}),
    "labels as categories": lambda f: f.astype({"clicked": "category", "seconds": "category"}),
    "nullable": lambda f: f.convert_dtypes(),
    "arrow-backed": lambda f: f.convert_dtypes(dtype_backend="pyarrow"),
    "booleans": lambda f: f.astype({"clicked": "boolean"}),
    "objects": lambda f: f.astype(object),
    "narrow": lambda f: f.astype({"clicked": "float16", "page": "uint8"}),
    "sparse": lambda f: f.assign(clicked=pd.arrays.SparseArray(f.clicked)),
    "views": views,
    "zone": lambda f: f.assign(
        time=pd.to_datetime(f.time, unit="s", utc=True).dt.tz_convert("Asia/Tokyo")
    ),
    "no zone": lambda f: f.assign(time=pd.to_datetime(f.time, unit="s")),
    "datetimes": lambda f: f.assign(
        time=pd.to_datetime(f.time, unit="s").dt.to_pydatetime().astype(object)
    ),
    "time index": lambda f: f.assign(time=pd.to_datetime(f.time, unit="s")).set_index("time"),
    "index": lambda f: f.set_index(["visitor", "page"]),
    "rows in no order of the index": lambda f: f.set_axis(f.index[::-1]),
    "columns that Arrow has not": lambda f: f.assign(x=[object()] * len(f)),
    "others twice": lambda f: pd.concat([f, f.assign(x=1)[["x"]], f.assign(x=2)[["x"]]], axis=1),
}


@pytest.mark.parametrize("types", TYPES)
def test_a_column_of_any_type_says_the_same(types: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**COLUMNS, "time": "time", "protocol": "time"}
    options["tasks"] = {**COLUMNS["tasks"], "seconds": "regression=seconds"}
    recsys_moe.prepare(log(), **options, out=tmp_path / "plain")
    recsys_moe.prepare(TYPES[types](log()), **options, out=tmp_path / "typed")
    assert content(tmp_path / "typed") == content(tmp_path / "plain")


@pytest.mark.parametrize("axis", [range(5), pd.MultiIndex.from_product([["a"], [*"vpcst"]])])
def test_names_of_columns_need_not_be_text(axis: Any, tmp_path: Path) -> None:
    frame = log().set_axis(axis, axis=1)
    names = list(frame)
    columns = {"user": names[0], "item": names[1], "tasks": {"click": ("binary", names[2])}}
    recsys_moe.prepare(frame, **columns, out=tmp_path / "named")
    text = {"user": str(names[0]), "item": str(names[1])}
    columns = {**text, "tasks": [f"click:binary={names[2]}"]}
    recsys_moe.prepare(frame, **columns, out=tmp_path / "text")
    recsys_moe.prepare(log(), **COLUMNS, out=tmp_path / "plain")
    assert content(tmp_path / "named") == content(tmp_path / "text")
    parts = [content(tmp_path / name) for name in ("named", "plain")]
    assert len({part["train/part-00000.parquet"] for part in parts}) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f[:0], "DataFrame: has no rows"),
        (lambda f: pd.DataFrame(), "column 'visitor' is missing; there are no columns"),
        (lambda f: f.visitor, "must be a DataFrame, got a Series; call to_frame"),
        (lambda f: pd.concat([f, f[["page"]]], axis=1), "column 'page' appears twice"),
        (lambda f: f.assign(visitor=[*f.visitor[1:], None]), "row 400: visitor must not be empty"),
        (lambda f: f.assign(visitor=[[one] for one in f.visitor]), "visitor must hold text or who"),
        (lambda f: f.assign(visitor=[7.5, *f.visitor[1:]]), "column 'visitor' cannot be read"),
        (lambda f: f.assign(visitor=[True, *f.visitor[1:]]), "column 'visitor' cannot be read"),
        (lambda f: f.assign(clicked=f.clicked * 1j), "column 'clicked' cannot be read"),
        (
            lambda f: f.assign(page=pd.to_datetime(f.time, unit="s").dt.to_period("D")),
            "column 'page' must hold text, numbers or times, not extension",
        ),
        (tuples, "column 'visitor' is missing; did you mean .*a.*visitor"),
        (lambda f: pa.array([1, 2]), "this Int64Array cannot be read"),
    ],
)
def test_a_frame_that_cannot_be_read_is_refused_in_a_line(
    change: Callable[[pd.DataFrame], Any], said: str, tmp_path: Path
) -> None:
    assert re.search(said, refused(change(log()), tmp_path))


def test_text_and_numbers_in_one_column_are_ids_as_text(tmp_path: Path) -> None:
    mixed = log().astype({"page": object}).set_axis([0] * 400)  # labels of rows may repeat
    mixed.iloc[:200, 1] = mixed.iloc[:200, 1].astype(str)
    mixed.iloc[0, 1] = 2**70
    recsys_moe.prepare(mixed, **COLUMNS, out=tmp_path / "mixed")
    recsys_moe.prepare(mixed.astype({"page": str}), **COLUMNS, out=tmp_path / "text")
    assert content(tmp_path / "mixed") == content(tmp_path / "text")


def test_titles_are_read_as_polars_hands_them_over(tmp_path: Path) -> None:
    titles = pd.DataFrame({"page": range(30), "title": [f"Page {one}" for one in range(30)]})
    for kind in (pa.large_string(), pa.string_view()):
        pages = arrow(titles).set_column(1, "title", arrow(titles)["title"].cast(kind))
        name = "views" if kind == pa.string_view() else "text"
        recsys_moe.prepare(log(), **COLUMNS, items=pages, out=tmp_path / name)
    assert content(tmp_path / "views") == content(tmp_path / "text")


def test_categories_of_an_item_may_be_lists(tmp_path: Path) -> None:
    """Of pandas, and as Polars hands them over."""
    genres = [["drama"], ["drama", "war"], None] * 10
    text = pd.DataFrame({"page": range(30), "genres": ["|".join(one or []) for one in genres]})
    lists = pd.DataFrame({"page": range(30), "genres": genres})
    column = pa.array(genres, pa.large_list(pa.string_view()))
    given = {"text": text, "lists": lists, "views": pa.table({"page": range(30), "genres": column})}
    for name, pages in given.items():
        features = {"item_features": pages, "item_feature": {"genres": "multi=genres"}}
        recsys_moe.prepare(log(), **COLUMNS, **features, out=tmp_path / name)
    found = [content(tmp_path / name) for name in given]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"user": "visiter"}, "DataFrame: column 'visiter' is missing; did you mean 'visitor'?"),
        ({"tasks": {"click": "bniary=clicked"}}, "tasks click: KIND must be .*did you mean"),
        ({"tasks": {"click": "binary"}}, "tasks click:binary has no column.*add negatives per-us"),
        ({"negatives": "per-usr"}, "negatives must be one of none, per-user, got 'per-usr'"),
        ({"protocol": "time"}, "protocol time needs time COLUMN"),
        ({"protocol": "hash", "engine": "stream"}, "engine stream needs files, got a DataFrame"),
        ({"user": None}, "user must be the name of a column, got None"),
        ({"tasks": {"click": None}}, r"tasks click must be KIND=COLUMN or \(KIND, COLUMN\), got N"),
        ({"tasks": 5}, "tasks must be a dict or a list of NAME:KIND=COLUMN, got 5"),
        ({"seed": "1"}, "seed must be int, got '1'"),
        ({"seed": True}, "seed must be int, got True"),
        ({"negative_ratio": None}, "negative_ratio must be float, got None"),
        ({"duplicates": 1}, "duplicates must be str, got 1"),
        ({"overwrite": "yes"}, "overwrite must be bool, got 'yes'"),
        ({"max_memory_mb": "2"}, "max_memory_mb must be None or int, got '2'"),
        ({"out": 3}, "out must be the path of a folder, got int"),
        ({"val": "x.csv"}, "give either data, or all three of train, val and test"),
    ],
)
def test_errors_name_keywords_and_columns_as_they_were_written(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        recsys_moe.prepare(log(), **{**COLUMNS, "out": tmp_path / "out", **options})


def test_numbers_of_numpy_and_shares_in_a_tuple_are_options(tmp_path: Path) -> None:
    plain = {"seed": 3, "negative_ratio": 2.0, "fractions": "0.6,0.2,0.2"}
    typed = {"seed": np.int64(3), "negative_ratio": 2, "fractions": (0.6, 0.2, 0.2)}
    for name, options in {"plain": plain, "typed": typed}.items():
        recsys_moe.prepare(log(), **COLUMNS, negatives="per-user", **options, out=tmp_path / name)
    assert content(tmp_path / "typed") == content(tmp_path / "plain")


def test_a_wrong_cell_is_named_with_its_row(tmp_path: Path) -> None:
    frame = log()
    frame.loc[6, "clicked"] = 3
    said = refused(frame, tmp_path)
    assert said.startswith("DataFrame, row 7: clicked must be 0 or 1")
    assert "got 3; add a column of 0 and 1" in said
    assert said.endswith("; or pass skip_bad_rows=True to skip such rows")
    recsys_moe.prepare(frame, **COLUMNS, skip_bad_rows=True, out=tmp_path / "out")


@pytest.mark.parametrize("given", [[1, 2], {"visitor": [1]}, 7, np.zeros((3, 3))])
def test_what_is_no_frame_is_refused(given: object, tmp_path: Path) -> None:
    said = refused(given, tmp_path)
    assert said.startswith("data must be a path or a DataFrame")
    assert said.endswith(f"got {type(given).__name__}")


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no option 'skip_bad'; did you mean 'skip_bad_rows'"):
        recsys_moe.prepare(log(), **COLUMNS, skip_bad=True, out=tmp_path / "out")
