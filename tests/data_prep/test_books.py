"""Book-Crossing: broken lines, the filter's readings, ISBNs, explicit and implicit records."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from data_prep import books
from data_prep.books.features import repair_isbns
from recsys_moe.schema import DataError, Schema
from tests.data_prep.samples import columns, raw_rows

HEADER = '"User-ID";"ISBN";"Book-Rating"'
# 12 users with 6 books each (b0..b5), every second record explicit
RECORDS = [f'"{u}";"b{n}";"{(u + n) % 2 * (5 + n)}"' for u in range(1, 13) for n in range(6)]


def write_ratings(folder: Path, records: list[str], name: str = "BX-Book-Ratings.csv") -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(line + "\r\n" for line in [HEADER, *records])
    (folder / name).write_bytes(text.encode("latin-1"))
    return folder


def pairs(out: Path) -> dict[tuple[object, object], tuple[object, ...]]:
    return {row[:2]: row[2:] for rows in raw_rows(out).values() for row in rows}


def test_watch_is_explicit_and_only_explicit_records_have_a_rating(tmp_path: Path) -> None:
    schema = books.prepare(write_ratings(tmp_path / "raw", RECORDS), tmp_path / "out")
    # test: ceil(0.15 * 72) = 11; val: ceil(0.15 / 0.85 * 61) = 11
    assert schema.rows == {"train": 50, "val": 11, "test": 11}
    found = pairs(tmp_path / "out")
    assert found[(1, "b0")] == (1.0, 5.0)
    assert found[(1, "b1")] == (0.0, None)
    assert len(found) == 72
    assert schema.report["explicit_records"] == 36 and schema.report["records"] == 72
    assert [(task.weight, task.low, task.high) for task in schema.tasks] == [
        (0.9, None, None),
        (0.1, 1.0, 10.0),
    ]
    assert Schema.load(tmp_path / "out") == schema


def test_broken_lines_are_counted_and_spoil_no_others(tmp_path: Path) -> None:
    odd = [
        '"13";"an \\"odd\\" one";"7"',
        '"14";"a ""doubled"" one";"7"',
        '"15";"semi;colon";"7"',
        '"16";"open quote;"7"',
        '"17";"two fields"',
        '"x";"b1";"7"',
        '"18";"";"7"',
        "",
    ]
    raw = write_ratings(tmp_path / "raw", odd + RECORDS)
    schema = books.prepare(raw, tmp_path / "out", min_user=0, min_item=0)
    assert schema.report["broken_lines"] == 5
    found = {key: value for key, value in pairs(tmp_path / "out").items() if key[0] > 12}
    assert list(found) == sorted(found, key=list(found).index)
    assert {key[1] for key in found} == {'an "odd" one', 'a "doubled" one', "semi;colon"}


def test_a_file_that_is_mostly_broken_is_refused(tmp_path: Path) -> None:
    raw = write_ratings(tmp_path / "raw", ["one,two"] * 73 + RECORDS)
    with pytest.raises(DataError, match=r"BX-Book-Ratings\.csv: 73 of 145 lines are broken"):
        books.prepare(raw, tmp_path / "out")


def test_the_newer_spelling_of_the_file_is_read_too(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [record.replace('"', "") for record in RECORDS]
    (raw / "Ratings.csv").write_text("\n".join(["User-ID;ISBN;Rating", *rows]))
    write_ratings(tmp_path / "old", RECORDS)
    books.prepare(raw, tmp_path / "new out")
    books.prepare(tmp_path / "old", tmp_path / "old out")
    assert pairs(tmp_path / "new out") == pairs(tmp_path / "old out")


# Users 1, 2, 3 have the 4 books a..d; user 4 has a and e; user 5 has only d.
SMALL = [f'"{u}";"{b}";"1"' for u in (1, 2, 3) for b in "abcd"]
SMALL += ['"4";"a";"0"', '"4";"e";"1"', '"5";"d";"1"']


@pytest.mark.parametrize(
    ("options", "users", "items"),
    [
        # users with 2 or more: 1..4; then a and d have 4 and 3 records, e has 1
        ({"min_user": 2, "min_item": 2, "strict": False}, [1, 2, 3, 4], "abcd"),
        # more than 2: 1..3; then every book has 3 records
        ({"min_user": 2, "min_item": 2}, [1, 2, 3], "abcd"),
        # books first, more than 3 records: a (4) and d (4); then users with more than 1: 1..3
        ({"min_user": 1, "min_item": 3, "order": "item-user"}, [1, 2, 3], "ad"),
        # users first, more than 1 record: 1..4; then more than 3 records: a has 4, d 3
        ({"min_user": 1, "min_item": 3}, [1, 2, 3, 4], "a"),
        # 2 or more, until stable: e goes in the first pass, so user 4 has 1 left and goes in the
        # second; a single pass keeps user 4
        ({"min_user": 2, "min_item": 2, "strict": False, "passes": 0}, [1, 2, 3], "abcd"),
        # only explicit records count: user 4 has one, so goes already in the first pass
        ({"min_user": 2, "min_item": 2, "strict": False, "rows": "explicit"}, [1, 2, 3], "abcd"),
    ],
)
def test_the_filter_does_what_its_options_say(
    options: dict[str, object], users: list[int], items: str, tmp_path: Path
) -> None:
    raw = write_ratings(tmp_path / "raw", SMALL)
    schema = books.prepare(raw, tmp_path / "out", **options)
    assert columns(tmp_path / "out", "users")["user"] == users
    assert columns(tmp_path / "out", "items")["item"] == list(items)
    assert sum(schema.rows.values()) == schema.report["records"]


@pytest.mark.parametrize(
    ("typed", "repaired"),
    [
        ("0306406152", "0306406152"),
        (" 0-306-40615-2", "0306406152"),
        # 10*0 + 9*8 + 8*0 + 7*4 + 6*4 + 5*2 + 4*9 + 3*5 + 2*7 = 199 = 11 * 18 + 1, so 10: X
        ("080442957x", "080442957X"),
        # 9+24+0+18+4+0+6+3+5+... : the same nine digits as the first one, check digit made anew
        ("9780306406157", "0306406152"),
        ("0306406153", "0306406153"),
        ("9780306406158", "9780306406158"),
        ("B0000BLD7X", "B0000BLD7X"),
        ("DITISEENSOORT", "DITISEENSOORT"),
    ],
)
def test_isbn_repair_keeps_what_it_cannot_repair(typed: str, repaired: str) -> None:
    fixed, changed = repair_isbns(pa.array([typed]))
    assert fixed.to_pylist() == [repaired]
    assert changed == (typed != repaired)


def test_repaired_books_merge_and_the_highest_rating_stays(tmp_path: Path) -> None:
    again = ['"1";"0306406152";"0"', '"1";"0-306-40615-2";"8"', '"1";"9780306406157";"6"']
    raw = write_ratings(tmp_path / "raw", RECORDS + again)
    options = {"min_user": 0, "min_item": 0, "repair_isbn": True}
    schema = books.prepare(raw, tmp_path / "out", **options)
    assert pairs(tmp_path / "out")[(1, "0306406152")] == (1.0, 8.0)
    assert (schema.report["repaired_isbns"], schema.report["dropped_repeats"]) == (2, 2)


def test_titles_and_readers_come_along_where_there_are_files(tmp_path: Path) -> None:
    raw = write_ratings(tmp_path / "raw", RECORDS)
    header = '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher";"Image-URL-S"'
    rows = [
        '"b0";"Caf\u00e9 \\"Noir\\"; or &amp; so";"A. Nobody";"1999";"P";"http://x"',
        '"b1";"Plain";"B";"soon";"P";"http://x"',
        '"b1";"Second";"B";"2001";"P";"http://x"',
        '"b2";"no author"',
    ]
    (raw / "BX-Books.csv").write_bytes("\r\n".join([header, *rows]).encode("latin-1"))
    users = ['"User-ID";"Location";"Age"', '"1";"utrecht, netherlands";"41"', '"2";"x, y";NULL']
    (raw / "BX-Users.csv").write_bytes("\r\n".join(users).encode("latin-1"))
    schema = books.prepare(raw, tmp_path / "out", min_item=0)
    items = columns(tmp_path / "out", "items")
    assert items["title"][:3] == ['Caf\u00e9 "Noir"; or & so', "Plain", None]
    assert items["year"][:2] == [1999, None]
    readers = columns(tmp_path / "out", "users")
    assert readers["location"][0] == "utrecht, netherlands"
    assert readers["age"][:3] == [41, None, None]
    assert schema.report["broken_lines_BX-Books.csv"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b'"User";"ISBN";"Book-Rating"\n', "'User-ID' is missing"),
        (b'"User-ID";"ISBN";"Book-Rating"\n', "leaves no records"),
    ],
)
def test_a_file_of_another_kind_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "BX-Book-Ratings.csv").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)):
        books.prepare(tmp_path, tmp_path / "out")


def test_the_ratings_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"BX-Book-Ratings\.csv is missing"):
        books.prepare(tmp_path, tmp_path / "out")
