"""Fractions of seconds: the splits follow them, and what is written are whole seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from recsys_moe.schema import SPLITS
from tests.data_prep.samples import IDS, columns, hashes, raw_rows, save

START_MS = 1_600_000_000_700
USERS, EVENTS, GAP_MS = 30, 10, 50
UNITS = ("s", "ms", "us", "ns")
FORMS: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "ms": ("x.csv", lambda ms: ms),
    "ms of int64": ("x.parquet", lambda ms: ms),
    "us": ("x.csv", lambda ms: ms * 1000),
    "ns as text": ("x.csv", lambda ms: ms * 10**6),
    "ns of int64": ("x.parquet", lambda ms: ms * 10**6),
    "seconds as text": ("x.csv", lambda ms: ms / 1000),
    "seconds of float64": ("x.parquet", lambda ms: ms / 1000),
    "ISO": ("x.csv", lambda ms: [f"{one.isoformat()}Z" for one in pd.to_datetime(ms, unit="ms")]),
    "ISO without a zone": ("x.csv", lambda ms: pd.to_datetime(ms, unit="ms").astype(str)),
    "timestamp[ms]": ("x.parquet", lambda ms: pd.to_datetime(ms, unit="ms").as_unit("ms")),
    "timestamp[ns, UTC]": ("x.parquet", lambda ms: pd.to_datetime(ms, unit="ms", utc=True)),
}


def log() -> pd.DataFrame:
    """Shuffled; the events of a user are 50 ms apart, their items in no order; `ms`: when."""
    rng = np.random.default_rng(5)
    number = np.tile(np.arange(EVENTS), USERS)
    data = pd.DataFrame(
        {
            "who": np.repeat(np.arange(USERS), EVENTS),
            "what": np.concatenate([rng.permutation(20)[:EVENTS] for _ in range(USERS)]),
            "clicked": 1,
            "stars": 1.0,
            "ms": START_MS + number * GAP_MS,
        }
    )
    return data.iloc[rng.permutation(len(data))].reset_index(drop=True)


def prepare(form: str, ms: np.ndarray, out: Path, **options: Any) -> Path:
    name, made = FORMS[form]
    source = save(log().assign(when=made(ms)), out.parent / name)
    table.prepare(out, input=source, **{"timestamp": "when", "force": True, **IDS, **options})
    return out


def pairs(out: Path, split: str) -> set[tuple[object, ...]]:
    return {row[:2] for row in raw_rows(out)[split]}


def times(out: Path) -> list[object]:
    return sorted(time for split in SPLITS for time in columns(out, split)["timestamp"])


@pytest.mark.parametrize("form", FORMS)
def test_the_last_events_are_held_out_though_others_are_50_ms_before(
    form: str, tmp_path: Path
) -> None:
    """In 2020, and around 1970: from -300 to 150 ms."""
    data = log()
    unit = form.split()[0] if form.split()[0] in UNITS else "s"
    for shift in (0, -START_MS - 300):
        ms = data["ms"].to_numpy() + shift
        out = prepare(form, ms, tmp_path / "out", protocol="leave-last", timestamp_unit=unit)
        ordered = data.sort_values("ms").groupby("who")
        for split, place in (("test", EVENTS - 1), ("val", EVENTS - 2)):
            held = ordered.nth(place)
            assert pairs(out, split) == set(zip(held["who"], held["what"], strict=True)), split
        assert times(out) == sorted(np.floor_divide(ms, 1000))


@pytest.mark.parametrize("form", FORMS)
def test_every_engine_writes_whole_seconds(form: str, tmp_path: Path) -> None:
    ms = log()["ms"].to_numpy()
    for engine in ("memory", "stream", "dask"):
        more = {"engine": engine, "protocol": "hash"}
        more |= {"scheduler": "synchronous"} if engine == "dask" else {}
        out = prepare(form, ms, tmp_path / engine, **more)
        assert times(out) == sorted(ms // 1000)
        assert hashes(out) == hashes(tmp_path / "memory")


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_in_time_may_fall_within_a_second(form: str, tmp_path: Path) -> None:
    """300 events, one a ms: floor(.7875 * 300) = 236 train, test begins with event .9 * 300."""
    data = log()
    ms = START_MS + np.arange(len(data))
    out = prepare(form, ms, tmp_path / "out", protocol="time")
    sizes = {split: len(columns(out, split)["timestamp"]) for split in SPLITS}
    assert sizes == {"train": 236, "val": 270 - 236, "test": 300 - 270}
    rows = data.iloc[270:]
    assert pairs(out, "test") == set(zip(rows["who"], rows["what"], strict=True))


def test_events_that_are_a_microsecond_apart_keep_their_order(tmp_path: Path) -> None:
    """Nanoseconds are kept where the numbers have them."""
    data = log()
    place = data["ms"].to_numpy() - START_MS
    for step in (1000, 1):
        data["when"] = START_MS * 10**6 + place // GAP_MS * step
        source = save(data, tmp_path / "x.parquet")
        out = tmp_path / str(step)
        table.prepare(out, input=source, timestamp="when", protocol="leave-last", **IDS)
        held = data.sort_values("ms").groupby("who").nth(EVENTS - 1)
        assert pairs(out, "test") == set(zip(held["who"], held["what"], strict=True))
