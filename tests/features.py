"""Prepared folders with features, made from those without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys_moe.schema import SCHEMA_FILE, FeatureColumn, Schema

AGE = FeatureColumn(name="age", kind="numeric", mean=30.0, std=10.0)
JOB = FeatureColumn(name="job", kind="categorical", size=3)
GENRES = FeatureColumn(name="genres", kind="multi", size=4)
YEAR = FeatureColumn(name="year", kind="numeric", mean=1990.0, std=5.0)


def with_features(prepared: Path, out: Path) -> Path:
    """A copy of a prepared folder whose users have age and job, and whose items genres and year.

    By entity n: age (n % 5 - 2) / 2, job n % 4 (3: unseen), genres {n % 4, n % 3}, year n % 2; none
    of them where n % 7 is 0.
    """
    shutil.copytree(prepared, out)
    schema = Schema.load(out)
    users, items = range(schema.user.size), range(schema.item.size)
    _add(out / "users.parquet", AGE, pa.array([_known(n, (n % 5 - 2) / 2) for n in users], "f4"))
    _add(out / "users.parquet", JOB, pa.array([_known(n, n % 4) for n in users], "int32"))
    genres = pa.array([_known(n, sorted({n % 4, n % 3})) for n in items], pa.list_(pa.int32()))
    _add(out / "items.parquet", GENRES, genres)
    _add(out / "items.parquet", YEAR, pa.array([_known(n, n % 2) for n in items], "f4"))
    _vocabularies(out / "features.parquet")
    schema = replace(schema, user_features=(AGE, JOB), item_features=(GENRES, YEAR))
    (out / SCHEMA_FILE).write_text(schema.to_json(), encoding="utf-8")
    return out


def _known(n: int, value: Any) -> Any:
    return None if n % 7 == 0 else value


def _add(path: Path, feature: FeatureColumn, values: pa.Array) -> None:
    pq.write_table(pq.read_table(path).append_column(feature.column, values), path)


def _vocabularies(path: Path) -> None:
    rows = [("user", "job", n, f"job {n}") for n in range(JOB.size)]
    rows += [("item", "genres", n, f"genre {n}") for n in range(GENRES.size)]
    columns = dict(zip(("side", "feature", "index", "value"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), path)
