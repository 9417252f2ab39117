"""`--duplicates keep`: a pair is in one split, wherever that does not follow time."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from recsys_moe.schema import SPLITS
from tests.data_prep.samples import hashes, raw_rows, save

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


def test_files_already_split_and_splits_by_time_tell_the_count(
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
