"""The published counts, on the real files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep import books, movielens
from recsys_moe.schema import SPLITS, Schema

# Positives of 1..5 stars in the published file
STARS_1M = [56_174, 107_557, 261_197, 348_971, 226_310]


@pytest.fixture(scope="module")
def ml1m(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("ml-1m") / "out"
    movielens.prepare("1m", real_data / "ml-1m", out)
    yield out


def columns(out: Path, split: str) -> dict[str, np.ndarray]:
    table = pq.read_table(out / split)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_ml1m_has_the_published_counts(ml1m: Path) -> None:
    schema = Schema.load(ml1m)
    assert schema.rows == {"train": 1_574_602, "val": 224_944, "test": 199_950}
    watched = {split: schema.labels[split]["watch"]["positive"] for split in SPLITS}
    assert watched == {"train": 787_664, "val": 112_524, "test": 100_021}
    assert (schema.user.size, schema.item.size) == (6_040, 3_706)
    assert schema.report == {"missing_negatives": 1_000_209 - 999_287}
    assert schema.protocol == "paper" and schema.vocabulary == "all"


def test_ml1m_has_every_rating_once(ml1m: Path) -> None:
    stars = [columns(ml1m, split)["rating"] for split in SPLITS]
    rated = np.concatenate(stars)
    rated = rated[~np.isnan(rated)].astype(int)
    assert np.bincount(rated)[1:].tolist() == STARS_1M
    assert len(rated) == 1_000_209


def test_ml1m_users_get_one_negative_per_rating_but_for_the_one_who_has_seen_most(
    ml1m: Path,
) -> None:
    parts = [columns(ml1m, split) for split in SPLITS]
    user, watch = (np.concatenate([part[c] for part in parts]) for c in ("user_index", "watch"))
    rated, drawn = (np.bincount(user[watch == label], minlength=6_040) for label in (1, 0))
    assert drawn.tolist() == np.minimum(rated, 3_706 - rated).tolist()
    # user 4169 has 2,314 ratings, so 3,706 - 2,314 = 1,392 negatives
    raw = pq.read_table(ml1m / "users.parquet")["user"].to_numpy()
    assert raw[drawn < rated].tolist() == [4_169]
    assert (rated.max(), drawn[raw == 4_169].tolist()) == (2_314, [1_392])


@pytest.mark.serial
def test_ml1m_takes_few_seconds_and_less_than_one_gigabyte(real_data: Path, tmp_path: Path) -> None:
    """Processor time, imports included: the clock on the wall depends on what else runs.

    2.3 s where reading the ratings in plain Python takes 0.75; slow machines have five times that.
    """
    code = (
        "import sys, time, resource; from pathlib import Path; from data_prep import movielens\n"
        "movielens.prepare('1m', sys.argv[1], Path(sys.argv[2]))\n"
        "print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        "sorted(tuple(map(int, line.split('::'))) for line in open(sys.argv[1] + '/ratings.dat'))\n"
        "print(time.process_time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(real_data / "ml-1m"), str(tmp_path / "out")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, kilobytes, with_plain_reading = map(float, done.stdout.split())
    assert seconds < max(5, 5 * (with_plain_reading - seconds))
    assert kilobytes * 1024 < 1e9


@pytest.mark.parametrize(
    ("protocol", "positives"),
    [
        # the time split moves rows of the same second to the later entity
        ("time", {"train": 78_750, "val": 11_250, "test": 10_000}),
        ("leave-last", {"train": 98_114, "val": 943, "test": 943}),
    ],
)
def test_ml100k_can_be_split_by_time(
    protocol: str, positives: dict[str, int], real_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    schema = movielens.prepare("100k", real_data / "ml-100k", out, protocol=protocol)
    for split, expected in positives.items():
        got = schema.labels[split]["watch"]["positive"]
        assert abs(got - expected) <= (20 if protocol == "time" else 0)
    if protocol == "time":
        times = {split: columns(out, split)["timestamp"] for split in SPLITS}
        assert np.nanmax(times["train"]) < np.nanmin(times["val"])
        assert np.nanmax(times["val"]) < np.nanmin(times["test"])
        assert schema.user.trained < schema.user.size == 943
    assert schema.vocabulary == "train"


def test_ml100k_has_its_counts_under_the_papers_protocol(real_data: Path, tmp_path: Path) -> None:
    schema = movielens.prepare("100k", real_data / "ml-100k", tmp_path / "out")
    # 100,000 ratings of 943 users; nobody has rated half of the 1,682 movies
    assert schema.rows == {"train": 157_500, "val": 22_500, "test": 20_000}
    assert (schema.user.size, schema.item.size) == (943, 1_682)


def test_book_crossing_is_read_whole(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "book-crossing"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: put BX-Book-Ratings.csv of Book-Crossing there")
    schema = books.prepare(folder, tmp_path / "out")
    report = schema.report
    assert report["broken_lines"] < 0.001 * report["records_read"]
    assert sum(schema.rows.values()) == report["records"]
    assert 0.3 < report["explicit_records"] / report["records"] < 0.45
    n = report["records"]
    assert schema.rows["test"] == -(-15 * n // 100)
