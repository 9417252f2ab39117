"""The type of ids in a prepared folder, whatever the files are: docs/how-to/prepare-data.md,
"Ids"."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.schema import DataError, Schema
from tests.data_prep.samples import IDS, columns, frame, hashes, save

USERS = list(range(1, 9))


def log(rows: int = 40) -> pd.DataFrame:
    """`frame` with the users 1..8 and the items 10..19, as integers."""
    data = frame(rows)
    return data.assign(who=np.arange(rows) % 8 + 1, what=data["what"].astype(int) + 10)


def floats(data: pd.DataFrame) -> pd.DataFrame:
    return data.assign(who=data["who"].astype(float), what=data["what"].astype(float))


def known(out: Path, entity: str = "user") -> Vocabulary:
    """The ids of a prepared folder as a model looks them up."""
    schema = Schema.load(out)
    return Vocabulary(getattr(schema, entity), pq.read_table(out / f"{entity}s.parquet")[entity])


def users_of(out: Path) -> list[Any]:
    return columns(out, "users")["user"]


@pytest.mark.parametrize("of_floats", ["the log", "the features"])
def test_features_by_integers_join_a_log_in_floats(of_floats: str, tmp_path: Path) -> None:
    users = pd.DataFrame({"who": USERS, "age": [20.0 + n for n in USERS]})
    items = pd.DataFrame({"what": range(10, 20), "title": [f"t{n}" for n in range(10, 20)]})
    data = log()
    if of_floats == "the log":
        data = floats(data)
    else:
        users, items = users.astype({"who": float}), items.astype({"what": float})
    schema = table.prepare(
        tmp_path / "out",
        input=save(data, tmp_path / "x.csv"),
        user_features=save(users, tmp_path / "users.csv"),
        user_feature=["age:numeric=age"],
        items=save(items, tmp_path / "items.csv"),
        **IDS,
    )
    assert schema.user_features[0].mean == 24.5  # (21 + ... + 28) / 8
    assert columns(tmp_path / "out", "items")["title"] == [f"t{n}" for n in range(10, 20)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.arange(40) % 8 + 1, pa.uint16()),
        pa.array(np.arange(40) % 8 + 1.0, pa.float32()),
        pa.array([Decimal(n % 8 + 1) for n in range(40)], pa.decimal128(10, 2)),
        pa.array([f"{n % 8 + 1}.0" for n in range(40)], pa.large_string()),
        pa.array(np.arange(40) % 8 + 1.0).dictionary_encode(),
        pa.array([f"{n % 8 + 1}" + ".0" * (n % 2) for n in range(40)]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_any_type_give_the_bytes_of_plain_integers(
    column: pa.Array, tmp_path: Path
) -> None:
    rest = pa.Table.from_pandas(log().drop(columns="who"))
    for name, users in {"x": column, "plain": pa.array(log()["who"])}.items():
        (tmp_path / name).mkdir()
        pq.write_table(rest.append_column("who", users), tmp_path / name / "x.parquet")
        table.prepare(tmp_path / f"out-{name}", input=tmp_path / name / "x.parquet", **IDS)
    found, wanted = (hashes(tmp_path / f"out-{name}") for name in ("x", "plain"))
    assert {k: v for k, v in found.items() if k != "schema.json"} == {
        k: v for k, v in wanted.items() if k != "schema.json"
    }


def test_in_a_column_of_texts_a_whole_number_is_one_id_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = log().astype({"who": object})
    data["who"] = data["who"].replace({3: "abc", 4: "007", 5: "-0.0", 6: "9007199254740993.0"})
    data.loc[data.index[8:], "who"] = data["who"].iloc[8:].replace({1: "1.0"})
    table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.csv"), **IDS)
    wanted = ["0", "007", "1", "2", "7", "8", "9007199254740993", "abc"]
    assert users_of(tmp_path / "out") == wanted
    asked = ["-0", "007", 1.0, "2.0", "7", 8, 2**53 + 1, "abc", "7.00", 7.0, "07"]
    assert known(tmp_path / "out").index(asked)[0].tolist() == [*range(8), 4, 4, 8]
    said = " ".join(one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    # 5 each of -0.0 and 9007199254740993.0 and 4 of 1.0; 5 each of abc and 007, first in line 4
    assert "cells: 14, such as '-0.0' in " in said and "x.csv, line 6" in said
    assert "not all of 40" in said and "cells: 10, such as 'abc' in " in said
    assert "cells: 5, such as '9007199254740993.0' in " in said


@pytest.mark.parametrize(
    ("dtype", "last"), [("float64", 2**53), ("float32", 2**24)], ids=["float64", "float32"]
)
def test_floats_that_may_be_rounded_get_a_warning(
    dtype: str, last: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From 2^53 (2^24) on, two whole numbers are one in floating point."""
    data = log()
    data["who"] = data["who"].replace({8: last}).astype(dtype)
    table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.parquet"), **IDS)
    assert users_of(tmp_path / "out") == [*USERS[:-1], last]
    said = [one.getMessage() for one in caplog.records if "rounded" in one.getMessage()]
    assert len(said) == 1 and "cells: 5, such as " in said[0] and "row 8)" in said[0]


@pytest.mark.parametrize("ids", ["integers", "texts", "mostly texts"])
def test_plain_id_columns_get_no_warning(
    ids: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = log() if ids == "integers" else frame()
    if ids == "mostly texts":
        data = data.replace({"who": {"u0": "7", "u1": "8"}})
    table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.csv"), **IDS)
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize("engine", ["stream", "dask"])
def test_all_engines_read_mixed_spellings_the_same(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = log().astype({"what": object})
    data.loc[39, "what"] = "19b"
    save(data.iloc[:20], tmp_path / "log" / "a.csv")
    save(floats(log().iloc[20:39]), tmp_path / "log" / "b.parquet")
    save(data.iloc[39:], tmp_path / "log" / "c.csv")
    told = []
    for name in ("memory", engine):
        caplog.clear()
        more: dict[str, Any] = {"scheduler": "synchronous"} if name == "dask" else {}
        out = tmp_path / name
        table.prepare(out, input=tmp_path / "log", protocol="hash", engine=name, **more, **IDS)
        told.append([one.getMessage() for one in caplog.records if one.levelname == "WARNING"])
    assert hashes(tmp_path / "memory") == hashes(tmp_path / engine)
    users, items, mixed = told[1]
    assert users.startswith("who: ") and "cells: 19," in users and "b.parquet, row 1)" in users
    assert items.startswith("what: ") and "cells: 19," in items
    assert "not all of 40" in mixed and "cells: 1, such as '19b' in " in mixed and "c.csv" in mixed
    counts = [[one.rpartition(" in ")[0] for one in lines] for lines in told]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("text", ["NaN", "nan", "<NA>"])
def test_nan_in_text_is_an_empty_id_and_can_be_skipped(text: str, tmp_path: Path) -> None:
    data = floats(log()).astype({"who": object})
    data.loc[4, "who"] = text
    source = save(data, tmp_path / "x.csv")
    with pytest.raises(DataError, match=f"line 6: who .*got '{text}'"):
        table.prepare(tmp_path / "out", input=source, **IDS)
    schema = table.prepare(tmp_path / "out", input=source, skip_bad_rows=True, **IDS)
    assert (schema.report["skipped_rows"], schema.user.id_type) == (1, "int64")


def test_categories_follow_the_rule_of_ids(tmp_path: Path) -> None:
    """Jobs and tags as pandas writes integers beside an empty cell."""
    users = pd.DataFrame(
        {"who": USERS, "job": [3.0, 4.0] * 3 + [np.nan, np.nan], "tags": ["1.0|2", "2.0"] * 4}
    ).astype({"job": object})
    users.loc[7, "job"] = "nan"
    schema = table.prepare(
        tmp_path / "out",
        input=save(log(), tmp_path / "x.csv"),
        user_features=save(users, tmp_path / "users.csv"),
        user_feature=["job:categorical=job", "tags:multi=tags"],
        **IDS,
    )
    assert [one.size for one in schema.user_features] == [2, 2]
    categories = pq.read_table(tmp_path / "out" / "features.parquet")
    assert categories["value"].to_pylist() == ["3", "4", "1", "2"]
    assert columns(tmp_path / "out", "users")["feature:job"] == [0, 1] * 3 + [None, None]
    assert columns(tmp_path / "out", "users")["feature:tags"] == [[0, 1], [1]] * 4
