"""`prepare table --weight`: a float32 column, 1 where nothing is said, the same in all engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from recsys_moe.schema import SPLITS, DataError, Schema
from tests.data_prep.samples import IDS, columns, frame, hashes, save


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
def test_a_cell_that_is_no_weight_is_named(engine: str, cell: str, tmp_path: Path) -> None:
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


def test_a_task_whose_rows_all_weigh_0_is_told(
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
