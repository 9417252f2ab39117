"""Features that MovieLens and Book-Crossing bring, with --features; without it none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from data_prep import books, movielens
from recsys_moe.schema import ConfigError, DataError, FeatureColumn, Schema
from tests.data_prep.samples import (
    TITLES,
    columns,
    hashes,
    lines,
    prepare_subset,
    write_100k,
    write_csv,
    write_dat,
)
from tests.data_prep.test_books import RECORDS, write_ratings

WRITE = {"100k": write_100k, "1m": write_dat, "latest-small": write_csv}


def kinds(features: tuple[FeatureColumn, ...]) -> dict[str, str]:
    return {one.name: one.kind for one in features}


def prepared(variant: str, tmp_path: Path, **options: Any) -> Schema:
    source = WRITE[variant](tmp_path / "raw")
    schema: Schema = prepare_subset(variant, source, tmp_path / "o", **options)
    return schema


def test_all_of_100k_are_those_of_its_files(tmp_path: Path) -> None:
    schema = prepared("100k", tmp_path, features="all")
    assert kinds(schema.user_features) == {
        "gender": "categorical", "age": "numeric", "occupation": "categorical"
    }  # fmt: skip
    assert kinds(schema.item_features) == {"genres": "multi", "year": "numeric"}
    age, year = schema.user_features[1], schema.item_features[1]
    assert (age.mean, age.std) == (24.5, 5.25**0.5)  # 21 to 28: variance (8^2 - 1) / 12
    assert (year.mean, year.std) == (1995.0, 1.0)  # of 01-Jan-1995, whatever the titles say
    users, items = columns(tmp_path / "o", "users"), columns(tmp_path / "o", "items")
    assert users["feature:gender"] == [0] * 8
    assert items["feature:genres"] == [[0, 1]] * 10  # Action and Drama
    assert items["year"] == [1910 + n for n in range(10)]  # the title's, as without features
    assert "released" not in items
    assert schema.command.startswith("prepare movielens --variant 100k --features all --protocol")
    assert schema.report["unused_item_features"] == 1  # item 20 has no rating


def test_ages_of_1m_are_groups_and_years_are_those_of_the_titles(tmp_path: Path) -> None:
    schema = prepared("1m", tmp_path, features="year,age")
    assert kinds(schema.user_features) == {"age": "categorical"}
    year = schema.item_features[0]
    assert (year.name, year.mean) == ("year", 1914.5)  # 1910 to 1919
    vocabulary = pq.read_table(tmp_path / "o" / "features.parquet").to_pylist()
    assert vocabulary == [{"side": "user", "feature": "age", "index": 0, "value": "25"}]


def test_occupations_of_1m_are_words_as_features_and_codes_as_columns(
    tmp_path: Path,
) -> None:
    source = write_dat(tmp_path / "raw")
    works = [0, 1, 12, 20, 21, -1, 12, 12]  # the release has 0 to 20
    rows = [f"{user}::F::25::{work}::02110" for user, work in enumerate(works, start=1)]
    lines(source / "users.dat", rows)
    prepare_subset("1m", source, tmp_path / "o", features="occupation")
    vocabulary = pq.read_table(tmp_path / "o" / "features.parquet").to_pylist()
    values = [row["value"] for row in vocabulary]
    told = ["other", "academic/educator", "programmer", "writer", "21", "-1", "programmer"]
    users = columns(tmp_path / "o", "users")
    assert [values[place] for place in users["feature:occupation"]] == [*told, "programmer"]
    assert users["occupation"] == works
    assert "occupation in words" not in users


def test_what_is_not_known_is_missing(tmp_path: Path) -> None:
    movies = [f"{i}|{t}|01-Jan-1995||http://x/{i}|0|1|1" for i, t in TITLES.items()]
    movies[1], movies[2] = "11|unknown||||1|0|0", "12|Film||||0|0|0"
    lines(write_100k(tmp_path / "raw") / "u.item", movies)
    prepare_subset("100k", tmp_path / "raw", tmp_path / "o", features="genres,year")
    items = columns(tmp_path / "o", "items")
    assert items["feature:genres"][:3] == [[0, 1], [2], None]  # "unknown" is a genre of theirs
    assert items["feature:year"][:3] == [0.0, None, None]


@pytest.mark.parametrize("variant", WRITE)
def test_without_the_option_the_folder_is_as_it_was_and_with_it_only_columns_are_added(
    variant: str, tmp_path: Path
) -> None:
    source = WRITE[variant](tmp_path / "raw")
    prepare_subset(variant, source, tmp_path / "plain")
    prepare_subset(variant, source, tmp_path / "more", features="all")
    plain, more = hashes(tmp_path / "plain"), hashes(tmp_path / "more")
    assert "features.parquet" not in plain
    assert '"format_version": 1' in (tmp_path / "plain" / "schema.json").read_text()
    assert {n: h for n, h in plain.items() if "/" in n} == {
        n: h for n, h in more.items() if "/" in n
    }
    for name in ("users", "items"):
        before, after = columns(tmp_path / "plain", name), columns(tmp_path / "more", name)
        assert {n: cells for n, cells in after.items() if "feature:" not in n} == before


WRONG = {
    "of another release": ("latest-small", "gender", "--features must be one of all, genres, year"),
    "misspelled": ("1m", "genre", "got 'genre'; did you mean 'genres'"),
    "twice": ("1m", "age,age", "--features must be all or distinct names, got 'age,age'"),
    "all and one": ("1m", "all,age", "--features must be all or distinct names"),
    "nothing": ("1m", "", "--features must be one of all, .*got ''"),
}


@pytest.mark.parametrize(("variant", "names", "message"), WRONG.values(), ids=WRONG)
def test_other_names_are_refused(variant: str, names: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(variant, tmp_path, features=names)
    assert not (tmp_path / "o").exists()


BOOKS = [
    '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher"',
    '"b0";"One";"A &amp; B";"1999";"P"',
    '"b1";"Two";"C";"0";"P"',
    '"b2";"Three";"C";"2050";"NULL"',
    '"b3";"Four";"";"2001";"Q"',
]
READERS = [
    '"User-ID";"Location";"Age"',
    '"1";"nyc, new york, usa";"20"',
    '"2";"bonn, nrw, Germany.";"30"',
    '"3";"somewhere, n/a, n/a";"NULL"',
    '"4";"here, ";"244"',
]


def book_files(folder: Path, **files: list[str]) -> Path:
    write_ratings(folder, RECORDS)
    for name, rows in files.items():
        lines(folder / f"BX-{name}.csv", rows)
    return folder


def test_books_bring_what_their_two_files_say(tmp_path: Path) -> None:
    source = book_files(tmp_path / "raw", Books=BOOKS, Users=READERS)
    schema = books.prepare(source, tmp_path / "o", features="all")
    assert kinds(schema.user_features) == {"age": "numeric", "country": "categorical"}
    assert kinds(schema.item_features) == {
        "author": "categorical", "publisher": "categorical", "year": "numeric"
    }  # fmt: skip
    age, year = schema.user_features[0], schema.item_features[2]
    assert (age.mean, age.std) == (25.0, 5.0)  # of 20 and 30: an age of 244 is none
    assert (year.mean, year.std) == (2000.0, 1.0)  # of 1999 and 2001: 0 and 2050 are no years
    users, items = columns(tmp_path / "o", "users"), columns(tmp_path / "o", "items")
    assert users["feature:country"][:4] == [1, 0, None, None]  # germany, usa
    assert items["feature:author"][:4] == [0, 1, 1, None]
    assert items["feature:publisher"][:4] == [0, 0, None, 1]
    values = pq.read_table(tmp_path / "o" / "features.parquet")["value"].to_pylist()
    assert values == ["germany", "usa", "A & B", "C", "P", "Q"]
    assert schema.report["users_without_features"] == 10  # 3 to 12
    assert "--order user-item --passes 1 --rows all --features all --seed 0" in schema.command


def test_all_are_those_whose_file_is_there_and_others_are_refused(tmp_path: Path) -> None:
    source = book_files(tmp_path / "raw", Users=READERS)
    schema = books.prepare(source, tmp_path / "o", features="all")
    assert (len(schema.user_features), schema.item_features) == (2, ())
    for names, place in (("age,year", source), ("all", book_files(tmp_path / "none"))):
        with pytest.raises(DataError, match=r"--features \w+ needs BX-\w+\.csv"):
            books.prepare(place, tmp_path / "refused", features=names)
    assert not (tmp_path / "refused").exists()


def test_the_real_100k_has_its_published_users_and_genres(real_data: Path, tmp_path: Path) -> None:
    """u.user and u.genre say how many; year of release is unknown of movie 267 alone."""
    folder = real_data / "ml-100k"
    schema = movielens.prepare("100k", folder, tmp_path / "o", features="all")
    sizes = {one.name: one.size for one in (*schema.user_features, *schema.item_features)}
    assert sizes == {"gender": 2, "age": 0, "occupation": 21, "genres": 19, "year": 0}
    ages = [int(line.split("|")[1]) for line in (folder / "u.user").read_text().splitlines()]
    assert schema.user_features[1].mean == sum(ages) / 943
    items = pq.read_table(tmp_path / "o" / "items.parquet")
    unknown = items.filter(items["feature:year"].is_null())
    assert (unknown["item"].to_pylist(), unknown["title"].to_pylist()) == ([267], ["unknown"])
    assert items["feature:genres"].null_count == 0
