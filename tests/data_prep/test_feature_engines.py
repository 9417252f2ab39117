"""Features in pieces: the bytes of the preparation in memory, with a context of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from data_prep.table import files
from data_prep.table import stream as table_stream
from data_prep.write import parts
from tests.data_prep.samples import hashes, save
from tests.data_prep.test_table_engines import HASH, log

ASKED = {
    **HASH,
    "user_feature": ["gender:categorical=sex", "age:numeric=years"],
    "item_feature": ["genres:multi=kinds:sep=;"],
    "context": ["hour:categorical=hour", "tags:multi=tags", "price:numeric=price"],
    "duplicates": "first",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces, bins and row groups, although there are few rows."""
    monkeypatch.setattr(files, "ROWS", 100)
    monkeypatch.setattr(files, "TEXT_BLOCK", 4000)
    monkeypatch.setattr(parts, "ROWS_PER_GROUP", 300)
    monkeypatch.setattr(table_stream, "ROW_BYTES", 400)


def with_context(rows: int = 1500) -> pd.DataFrame:
    """Prices of many sizes, whose sums in double precision would depend on their order."""
    rng = np.random.default_rng(5)
    price = np.exp(rng.normal(0, 12, rows))
    tags = ["|".join(sorted({f"t{n}" for n in rng.integers(0, 9, k)})) for k in range(4)]
    return log(rows).assign(
        hour=rng.integers(0, 24, rows),
        tags=rng.choice(np.array(tags, dtype=object), rows),
        price=np.where(rng.random(rows) < 0.1, np.nan, price),
    )


def sides(folder: Path, data: pd.DataFrame) -> dict[str, Path]:
    who, what = np.unique(data["who"]), np.unique(data["what"])
    users = pd.DataFrame({"who": who, "sex": np.where(who % 2, "f", "m"), "years": who % 61 + 0.1})
    kinds = [f"k{n % 5};k{n % 7}" if n % 3 else "" for n in range(len(what))]
    items = pd.DataFrame({"what": what, "kinds": kinds})
    return {
        "user_features": save(users.iloc[3:], folder / "users.parquet"),
        "item_features": save(items, folder / "items.csv"),
    }


@pytest.mark.parametrize("negatives", ["none", "per-user"])
def test_every_engine_writes_the_same_features(negatives: str, small: None, tmp_path: Path) -> None:
    data = with_context()
    save(data.iloc[:700], tmp_path / "log" / "a.csv")
    data.iloc[700:].to_parquet(tmp_path / "log" / "b.parquet", index=False, row_group_size=250)
    options = {**ASKED, "input": tmp_path / "log", "negatives": negatives}
    options |= sides(tmp_path, data)
    if negatives != "none":
        options["context"] = []
    schema = table.prepare(tmp_path / "memory", **options)
    expected = hashes(tmp_path / "memory")
    assert "features.parquet" in expected
    for name, more in (
        ("stream", {"max_memory_mb": 3}),
        ("one bin", {"max_memory_mb": 4096}),
        ("dask", {"max_memory_mb": 3, "engine": "dask", "scheduler": "synchronous"}),
    ):
        asked = {**options, "engine": "stream", **more}
        assert table.prepare(tmp_path / name, **asked) == schema
        assert hashes(tmp_path / name) == expected, name
