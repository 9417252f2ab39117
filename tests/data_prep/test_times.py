"""Times of a table: units, fractions of seconds, zero, day-first dates, implausible times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.schema import SPLITS
from tests.data_prep.samples import IDS, columns, frame, hashes, raw_rows, save

START = 1_600_000_000
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def prepare(when: Any, folder: Path, name: str = "x.csv", **options: Any) -> list[object]:
    """The times that are written, in order."""
    source = save(frame().assign(when=when), folder / name)
    words = {"timestamp": "when", "force": True, **IDS, **options}
    table.prepare(folder / "out", input=source, **words)
    found = [columns(folder / "out", split).get("timestamp", [None]) for split in SPLITS]
    return sorted((one for part in found for one in part), key=lambda one: (one is None, one))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_relative_times_from_0_can_be_split_by_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for protocol in ("time", "leave-last"):
        found = prepare(np.arange(40), tmp_path, protocol=protocol)
        assert found == list(range(40))
    assert warned(caplog) == []
    last = columns(tmp_path / "out", "test")["timestamp"]
    assert sorted(last) == list(range(32, 40))  # the last rows of 8 users who come in turn


def test_an_empty_cell_is_an_unknown_time_and_0_is_a_time(tmp_path: Path) -> None:
    for name in ("x.csv", "x.parquet"):
        assert prepare([0.0, np.nan, *range(1, 39)], tmp_path, name) == [*range(39), None]
        with pytest.raises(DataError, match="1 of 40 rows"):
            prepare([0.0, np.nan, *range(1, 39)], tmp_path, name, protocol="time")


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_the_size_of_numbers_tells_their_unit(name: str, engine: str, tmp_path: Path) -> None:
    """The last of a second is still in it: 40 seconds less one nanosecond, and so on."""
    options: dict[str, Any] = {"engine": engine, "protocol": "hash"}
    for unit, scale in UNITS.items():
        when = (START + np.arange(40)) * scale + (scale - 1 if name != "x.csv" else 0)
        for asked in ("auto", unit):
            found = prepare(when, tmp_path, name, timestamp_unit=asked, **options)
            assert found == list(range(START, START + 40)), (unit, asked)


def test_a_number_is_in_a_unit_up_to_the_year_5138_and_the_next_from_1973_on(
    tmp_path: Path,
) -> None:
    """Among the last numbers of a unit and the first of the next: 1e11 - 100 s, 1e11 ms, ..."""
    for next_scale, first in ((10**3, 10**11), (10**6, 10**14), (10**9, 10**17)):
        last = prepare([first - 100] * 40, tmp_path, "x.parquet")
        assert last == [(first - 100) * 1000 // next_scale] * 40
        assert prepare([first] * 40, tmp_path, "x.parquet") == [first // next_scale] * 40


def test_a_unit_that_is_named_goes_before_the_size(tmp_path: Path) -> None:
    assert prepare(np.arange(40) * 1000, tmp_path, timestamp_unit="ms") == list(range(40))
    assert prepare(-1000 * np.arange(40), tmp_path, timestamp_unit="ms")[0] == -39
    found = prepare((START + np.arange(40)) * 1000, tmp_path, timestamp_unit="s")
    assert found[0] == START * 1000
    with pytest.raises(ConfigError, match="--timestamp-unit must be .*'min'"):
        prepare(np.arange(40), tmp_path, timestamp_unit="min")


def test_a_unit_may_be_finer_than_the_type_of_the_numbers_can_count(tmp_path: Path) -> None:
    """10^9 ns are more than int16 holds."""
    when = np.arange(40, dtype=np.int16)
    assert prepare(when, tmp_path, "x.parquet", timestamp_unit="ns") == [0] * 40


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_numbers_of_two_units_are_refused_with_their_counts(engine: str, tmp_path: Path) -> None:
    when = START + np.arange(40)
    when[[3, 30]] *= 1000
    options: dict[str, Any] = {"engine": engine, "protocol": "hash"}
    with pytest.raises(DataError, match="when .*38 in s and 2 in ms; pass --timestamp-unit"):
        prepare(when, tmp_path, **options)
    assert prepare(when, tmp_path, timestamp_unit="s", **options)[-1] == (START + 30) * 1000


ODD = {
    "late": (4_102_444_800, "1 of 40 times are after 2100"),  # 2100-01-01
    "early": (-1, "1 of 40 times are before 1970"),
    "zero": (0, "1 of 40 times are 0, which is 1970-01-01"),
    "late date": ("2100-01-01", "1 of 40 times are after 2100"),
    "early date": ("1969-12-31", "1 of 40 times are before 1970"),
}


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize(("value", "said"), ODD.values(), ids=ODD)
def test_implausible_times_are_counted(
    value: object, said: str, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    when = [value, *(START + np.arange(39))]
    prepare(when, tmp_path, engine=engine, protocol="hash")
    assert ["when: " + said in one for one in warned(caplog) if "when" in one] == [True]


def test_times_up_to_2100_are_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare([1, 4_102_444_799, *(START + np.arange(38))], tmp_path)
    assert warned(caplog) == []


def test_day_first_dates_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    dates = [f"{1 + n % 28}/2/2024" for n in range(36)]
    mixed = ["03.02.2024", "3-2-2024 9:30", "3/2/2024T09:30:15", "2024-02-03T00:00:01"]
    with pytest.raises(DataError, match="line 2: when .*--day-first, got '1/2/2024'"):
        prepare([*dates, *mixed], tmp_path)
    found = prepare([*dates, *mixed], tmp_path, day_first=True)
    third = pd.Timestamp("2024-02-03", tz="UTC").timestamp()
    seconds = [third, third + 9.5 * 3600, third + 9.5 * 3600 + 15, third + 1]
    days = [pd.Timestamp(2024, 2, 1 + n % 28, tz="UTC").timestamp() for n in range(36)]
    assert found == sorted([*days, *seconds])


@pytest.mark.parametrize("cell", ["12/31/2024", "1/2/24", "1.2.2024 25:00", "1.2.2024, 9:00"])
def test_what_has_no_day_first_is_refused(cell: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 3: when must be"):
        prepare(["1/2/2024", cell, *["1/2/2024"] * 38], tmp_path, day_first=True)


@pytest.mark.parametrize("cell", ["now", " Today ", "true"])
def test_a_word_is_no_time(cell: str, tmp_path: Path) -> None:
    """pandas takes some for the moment of the call."""
    with pytest.raises(DataError, match="line 3: when must be seconds since 1970 or an ISO date"):
        prepare(["2024-02-01", cell, *["2024-02-01"] * 38], tmp_path)


def test_an_infinite_number_is_no_time(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="when must be seconds since 1970 or an ISO date, got inf"):
        prepare([*[1.7e9] * 39, float("inf")], tmp_path, "x.parquet")


def test_a_time_of_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="when must hold numbers, not time64"):
        prepare([pd.Timestamp(n, unit="s").time() for n in range(40)], tmp_path, "x.parquet")


START_MS = 1_600_000_000_700
USERS, EVENTS, GAP_MS = 30, 10, 50
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


def prepare_ms(form: str, ms: np.ndarray, out: Path, **options: Any) -> Path:
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
        out = prepare_ms(form, ms, tmp_path / "out", protocol="leave-last", timestamp_unit=unit)
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
        out = prepare_ms(form, ms, tmp_path / engine, **more)
        assert times(out) == sorted(ms // 1000)
        assert hashes(out) == hashes(tmp_path / "memory")


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_in_time_may_fall_within_a_second(form: str, tmp_path: Path) -> None:
    """300 events, one a ms: floor(.7875 * 300) = 236 train, test begins with event .9 * 300."""
    data = log()
    ms = START_MS + np.arange(len(data))
    out = prepare_ms(form, ms, tmp_path / "out", protocol="time")
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
