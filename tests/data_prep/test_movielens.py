"""MovieLens: every layout, the paper's protocol, and bad files named by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import movielens
from recsys_moe.schema import SPLITS, ConfigError, DataError, Schema
from tests.data_prep.samples import (
    RATINGS,
    columns,
    hashes,
    lines,
    prepare_subset,
    raw_rows,
    write_100k,
    write_csv,
    write_dat,
    zipped,
)

WRITERS: dict[str, Callable[[Path], Path]] = {
    "100k": write_100k,
    "1m": write_dat,
    "10m": lambda folder: write_dat(folder, users=False),
    "latest-small": write_csv,
    "20m": write_csv,
    "25m": write_csv,
    "32m": write_csv,
}
N_USERS, N_ITEMS, N_POSITIVES = 8, 10, 36  # 8 + 7 * 4
N_NEGATIVES = 2 + 7 * 4  # user 1 has rated 8 of 10 items


@pytest.mark.parametrize("variant", WRITERS)
def test_every_layout_gives_the_papers_protocol(variant: str, tmp_path: Path) -> None:
    WRITERS[variant](tmp_path / "raw")
    schema = prepare_subset(variant, tmp_path / "raw", tmp_path / "out")
    assert schema == Schema.load(tmp_path / "out")
    assert (schema.user.size, schema.item.size) == (N_USERS, N_ITEMS)
    # test: ceil(0.1 * 66) = 7; val: ceil(0.125 * 59) = 8
    assert schema.rows == {"train": 51, "val": 8, "test": 7}
    assert schema.report == {"missing_negatives": N_POSITIVES - N_NEGATIVES}
    rows = [row for split in raw_rows(tmp_path / "out").values() for row in split]
    rated = {(user, item): float(rating) for user, item, rating, _ in RATINGS}
    assert {row[:2]: row[3] for row in rows if row[2] == 1} == rated
    drawn = [row for row in rows if row[2] == 0]
    assert len(drawn) == N_NEGATIVES and all(row[3] is None for row in drawn)
    assert {row[:2] for row in drawn}.isdisjoint(rated) and len(set(rows)) == len(rows)
    assert Counter(row[0] for row in drawn) == {1: 2, **dict.fromkeys(range(2, 9), 4)}
    items = columns(tmp_path / "out", "items")
    assert items["item"] == list(range(10, 20))  # 20 has no rating
    assert items["item_index"] == list(range(10))
    assert items["title"][:2] == ["Caf\u00e9: noir (1910)", "Film 11 (1911)"]
    assert items["year"][:2] == [1910, 1911]
    assert items["genres"] == ["Action|Drama"] * 10


@pytest.mark.parametrize(
    ("variant", "user_2"),
    [
        ("1m", {"gender": "F", "age": 25, "occupation": 2, "zip": "02110"}),
        ("100k", {"age": 22, "gender": "M", "occupation": "writer", "zip": "02110"}),
        ("10m", {}),
    ],
)
def test_users_keep_the_columns_of_the_release(
    variant: str, user_2: dict[str, object], tmp_path: Path
) -> None:
    WRITERS[variant](tmp_path / "raw")
    prepare_subset(variant, tmp_path / "raw", tmp_path / "out")
    users = columns(tmp_path / "out", "users")
    assert {name: column[1] for name, column in users.items()} == {
        "user": 2,
        "user_index": 1,
        **user_2,
    }


@pytest.mark.parametrize("variant", ["100k", "1m", "10m", "20m"])
def test_a_folder_a_parent_folder_and_a_zip_give_the_same_bytes(
    variant: str, tmp_path: Path
) -> None:
    inside = movielens.VARIANTS[variant].folder
    folder = WRITERS[variant](tmp_path / inside)
    archive = zipped(folder, tmp_path / "x.zip", inside)
    for number, source in enumerate([folder, tmp_path, archive]):
        prepare_subset(variant, source, tmp_path / f"out{number}")
    assert hashes(tmp_path / "out0") == hashes(tmp_path / "out1") == hashes(tmp_path / "out2")


def test_the_schema_records_the_source(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    schema = prepare_subset("1m", str(tmp_path / "raw"), tmp_path / "out", seed=7)
    assert schema.command == "prepare movielens --variant 1m --protocol paper --seed 7"
    assert schema.seeds == {"negatives": 7, "split": 7}
    assert [source.name for source in schema.sources] == ["movies.dat", "ratings.dat", "users.dat"]
    assert schema.sources[1].bytes == (tmp_path / "raw" / "ratings.dat").stat().st_size
    watch, rating = schema.tasks
    assert (watch.kind, watch.weight, watch.column) == ("binary", 0.9, "watch")
    assert (rating.kind, rating.weight, rating.low, rating.high) == ("regression", 0.1, 1.0, 5.0)


def test_half_stars_are_ratings_from_10m_onwards(tmp_path: Path) -> None:
    write_csv(tmp_path / "raw")
    path = tmp_path / "raw" / "ratings.csv"
    path.write_text(path.read_text().replace("1,10,1,100", "1,10,0.5,100"))
    schema = prepare_subset("20m", tmp_path / "raw", tmp_path / "out")
    rows = [row for split in raw_rows(tmp_path / "out").values() for row in split]
    assert (1, 10, 1.0, 0.5) in rows
    assert (schema.tasks[1].low, schema.tasks[1].high) == (0.5, 5.0)


def test_an_unknown_time_is_null(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    edit(tmp_path / "raw" / "ratings.dat", "1::10::1::100", "1::10::1::0")
    prepare_subset("1m", tmp_path / "raw", tmp_path / "out")
    tables = [columns(tmp_path / "out", name) for name in SPLITS]
    times = [t for table in tables for t in table["timestamp"]]
    watched = [label for table in tables for label in table["watch"]]
    positives = [t for t, label in zip(times, watched, strict=True) if label == 1]
    assert positives.count(None) == 1
    assert 101 in positives and 0 not in times
    assert {t for t in times if t is not None} <= {*positives}  # negatives have those of positives


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="latin-1")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="latin-1")


BAD_1M = {
    "rating off the scale": ("1::12::3::", "1::12::6::", ["ratings.dat, line 3", "got 6"]),
    "half a star in 1m": ("1::12::3::", "1::12::3.5::", ["ratings.dat, line 3", "got 3.5"]),
    "rating of nan": ("1::12::3::", "1::12::nan::", ["ratings.dat, line 3", "got nan"]),
    "line cut short": ("1::12::3::102", "1::12", ["ratings.dat, line 3", "4 fields", "got 2"]),
    "single colons": ("1::12::3::102", "1:12:3:102", ["ratings.dat, line 3", "got 1"]),
    "one field more": ("1::12::3::102", "1::12::3::102::7", ["ratings.dat, line 3", "got 5"]),
    "stray colon": ("1::12::3::102", "1::12::3:::102", ["ratings.dat, line 3", "':102'"]),
    "a letter": ("1::12::3::102", "1::x::3::102", ["ratings.dat, line 3", "item", "'x'"]),
    "a gap": ("1::12::3::102", "1::::3::102", ["ratings.dat, line 3", "item", "''"]),
    "a pair twice": (
        "1::12::3::102",
        "1::11::3::102",
        ["ratings.dat, line 3", "user 1", "item 11"],
    ),
}


@pytest.mark.parametrize(("old", "new", "parts"), BAD_1M.values(), ids=BAD_1M)
def test_a_bad_line_is_named_and_nothing_is_left(
    old: str, new: str, parts: list[str], tmp_path: Path
) -> None:
    write_dat(tmp_path / "raw")
    prepare_subset("1m", tmp_path / "raw", tmp_path / "out")
    before = hashes(tmp_path / "out")
    edit(tmp_path / "raw" / "ratings.dat", old, new)
    with pytest.raises(DataError) as failure:
        prepare_subset("1m", tmp_path / "raw", tmp_path / "out", force=True)
    message = str(failure.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert hashes(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (variant, name)
        for variant, names in {
            "100k": ["u.data", "u.item", "u.user", "u.genre"],
            "1m": ["ratings.dat", "movies.dat", "users.dat"],
            "20m": ["ratings.csv", "movies.csv"],
        }.items()
        for name in names
    ],
)
def test_a_missing_or_empty_file_is_named(variant: str, name: str, tmp_path: Path) -> None:
    folder = WRITERS[variant](tmp_path / "raw")
    (folder / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"{name}.*empty|{name}.*missing"):
        prepare_subset(variant, folder, tmp_path / "out")
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing; --source must name"):
        prepare_subset(variant, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "raw")
    lines(tmp_path / "raw" / "ratings.csv", ["userId,movieId,rating,timestamp"])
    with pytest.raises(DataError, match=r"ratings\.csv: has no ratings"):
        prepare_subset("25m", tmp_path / "raw", tmp_path / "out")


def test_a_movie_listed_twice_is_refused(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    edit(tmp_path / "raw" / "movies.dat", "12::", "11::")
    with pytest.raises(DataError, match=r"movies\.dat, line 3: item 11 has more than one row"):
        prepare_subset("1m", tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize("kept", [0.3, 0.98], ids=["early", "late"])
def test_a_truncated_zip_is_refused(kept: float, tmp_path: Path) -> None:
    archive = zipped(write_dat(tmp_path / "ml-1m"), tmp_path / "ml-1m.zip", "ml-1m")
    data = archive.read_bytes()
    archive.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(DataError, match=r"ml-1m\.zip .*whole zip"):
        prepare_subset("1m", archive, tmp_path / "out")


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file.*--source"):
        prepare_subset("1m", tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "1M"}, "--variant .*got '1M'.*'1m'"),
        ({"protocol": "tme"}, "--protocol .*got 'tme'.*'time'"),
        ({"seed": -1}, "--seed .*got -1"),
    ],
)
def test_a_wrong_option_is_a_config_error(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    write_dat(tmp_path / "raw")
    wanted = {"variant": "1m", "source": tmp_path / "raw", "out": tmp_path / "out", **options}
    with pytest.raises(ConfigError, match=message):
        prepare_subset(**wanted)
    assert not (tmp_path / "out").exists()


def test_a_file_cut_at_the_end_of_a_line_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    with pytest.raises(DataError, match="published .*got 36.*--partial"):
        movielens.prepare("1m", tmp_path / "raw", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert prepare_subset("1m", tmp_path / "raw", tmp_path / "out").rows["test"] > 0
