"""`--skip-bad-rows`: what cannot be used is left out, counted, listed; else an error names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from data_prep import books, table
from data_prep.read import bad_rows
from data_prep.table import pieces
from recsys_moe.schema import DataError
from tests.conftest import tells
from tests.data_prep.samples import (
    IDS,
    RATINGS,
    frame,
    hashes,
    lines,
    prepare_subset,
    raw_rows,
    save,
    write_100k,
    write_csv,
    write_dat,
)

HASH: dict[str, Any] = {**IDS, "protocol": "hash", "timestamp": "when", "weight": "mass"}
CELLS = [
    (3, "clicked", "3", "clicked must be 0 or 1 (or empty, if missing), got '3'"),
    (7, "clicked", "maybe", "clicked must be 0 or 1 (or empty, if missing), got 'maybe'"),
    (7, "stars", "many", ""),  # the same row: told once
    (12, "when", "soon", "when must be seconds since 1970 or an ISO date, got 'soon'"),
    (20, "mass", "-1", "mass must be a finite number >= 0 (or empty, which counts as 1), got '-1'"),
    (21, "stars", "1e300", "stars must be a finite number"),
    (30, "who", "", "who must not be empty, got ''"),
    (31, "when", "1e300", "when must be seconds since 1970 or an ISO date"),
]
BAD = sorted({row for row, *_ in CELLS})


def spoiled() -> pd.DataFrame:
    data = frame().assign(mass=1).astype(object)
    data = data.where(data.notna(), "")
    for row, column, value, _ in CELLS:
        data.loc[row, column] = value
    return data


def skipped(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    return [text.removeprefix("skipped: ") for text in said if text.startswith("skipped: ")]


@pytest.mark.parametrize("engine", ["memory", "stream", "dask"])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_rows_with_a_wrong_cell_are_left_out_counted_and_listed(
    name: str, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = spoiled()
    options = {**HASH, "skip_bad_rows": True, "engine": engine}
    options |= {"scheduler": "synchronous"} if engine == "dask" else {}
    source = save(data.astype(str), tmp_path / name)
    schema = table.prepare(tmp_path / "out", input=source, **options)
    assert schema.report["skipped_rows"] == len(BAD) == 7
    found = skipped(caplog)
    assert len(found) == 7
    line = engine == "memory" and name == "x.csv"
    for row, *_, rule in [cell for cell in CELLS if cell[3]]:
        place = f"line {row + 2}" if line else f"row {row + 1}"
        assert any(one.startswith(f"{source}, {place}: {rule}") for one in found), (place, found)
    clean = save(data.drop(index=BAD).astype(str), tmp_path / f"clean-{name}")
    table.prepare(tmp_path / "clean", input=clean, **HASH)
    assert raw_rows(tmp_path / "out") == raw_rows(tmp_path / "clean")
    assert "--skip-bad-rows" in schema.command


def test_every_engine_skips_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "TEXT_BLOCK", 400)
    text = spoiled().to_csv(index=False).splitlines()
    text[10:10] = ["u1,001,1", "u1,001,1,2,3,4,5"]
    lines(tmp_path / "x.csv", text)
    found = []
    for engine in ("memory", "stream"):
        out = tmp_path / engine
        schema = table.prepare(
            out, input=tmp_path / "x.csv", engine=engine, skip_bad_rows=True, **HASH
        )
        found.append((hashes(out), schema.report))
    assert found[0] == found[1]
    assert found[0][1]["skipped_rows"] == 9


def test_lines_with_other_fields_are_left_out_and_later_lines_keep_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = frame().to_csv(index=False).splitlines()
    text[5:5] = ["u1,001", "", '"u1', '9",001,1,2,3,4,5']  # lines 6 to 9; one cell of two lines
    text[20] = text[20].replace(",", ",,", 1)
    text[30] = "u1,001,7,,5"
    lines(tmp_path / "x.csv", text)
    options = {**IDS, "input": tmp_path / "x.csv"}
    with pytest.raises(DataError, match=r"x\.csv, line 6: .*5 .*got 2.*--skip-bad-rows"):
        table.prepare(tmp_path / "out", **options)
    schema = table.prepare(tmp_path / "out", skip_bad_rows=True, **options)
    assert sum(schema.rows.values()) == 40 - 2 and schema.report["skipped_rows"] == 4
    places = [one.split(": ")[0].split(", ")[1] for one in skipped(caplog)]
    assert places == ["line 6", "line 9", "line 21", "line 31"]


def test_the_split_of_three_files_is_kept_and_repeats_are_named_by_line(tmp_path: Path) -> None:
    data = spoiled()
    parts = {"train": data[:20], "val": data[20:30], "test": data[30:]}
    options: dict[str, Any] = {k: v for k, v in HASH.items() if k != "protocol"}
    given = {name: save(part, tmp_path / f"{name}.csv") for name, part in parts.items()}
    schema = table.prepare(tmp_path / "out", skip_bad_rows=True, **options, **given)
    assert schema.rows == {"train": 20 - 3, "val": 10 - 2, "test": 10 - 2}
    again = pd.concat([data[:20], data[5:6]])
    save(again, tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"train\.csv, line 22: user 'u5' .* already have a row"):
        table.prepare(tmp_path / "again", skip_bad_rows=True, **options, **given)


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_when_most_rows_are_bad_it_is_an_error(engine: str, tmp_path: Path) -> None:
    source = save(frame().assign(clicked=["7"] * 21 + ["1"] * 19), tmp_path / "x.csv")
    with pytest.raises(DataError, match="21 of 40 rows are bad, the first is .*right columns"):
        table.prepare(
            tmp_path / "o", input=source, skip_bad_rows=True, engine=engine, protocol="hash", **IDS
        )
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_of_many_bad_rows_the_first_ten_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = frame().astype(object)
    data.loc[::3, "clicked"] = "x"  # 14 rows
    table.prepare(tmp_path / "o", input=save(data, tmp_path / "x.csv"), skip_bad_rows=True, **IDS)
    found = skipped(caplog)
    assert len(found) == bad_rows.LISTED + 1 == 11 and found[-1] == "4 more"


WRITERS = {"1m": write_dat, "100k": write_100k, "latest-small": write_csv}


@pytest.mark.parametrize("variant", WRITERS)
def test_movielens_skips_its_bad_lines(
    variant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = WRITERS[variant](tmp_path / "raw")
    name, mark = {"1m": ("ratings.dat", "::"), "100k": ("u.data", "\t")}.get(
        variant, ("ratings.csv", ",")
    )
    path = folder / name
    text = path.read_text(encoding="latin-1").splitlines()
    first = len(text) - len(RATINGS)
    rows = [["1", "12"], ["x", "12", "3", "9"], ["1", "12", "9", "9"], ["1", "10", "3", "9"]]
    text[first + 3 : first + 3] = [mark.join(row) for row in rows]
    lines(path, text)
    place = f"{name}, line {first + 4}: .*4 fields .*--skip-bad-rows"
    with pytest.raises(DataError, match=place):
        prepare_subset(variant, folder, tmp_path / "out")
    schema = prepare_subset(variant, folder, tmp_path / "out", skip_bad_rows=True)
    found = skipped(caplog)
    assert [one.split(f"{name}, line ")[1].split(":")[0] for one in found] == [
        str(first + n) for n in (4, 5, 6, 7)
    ]
    for one, rule in zip(found, ("4 fields", " must be an integer, got 'x'",
                                 "rating must be one of", "has already rated item 10"),
                         strict=True):  # fmt: skip
        assert rule in one
    assert schema.report["skipped_rows"] == 4
    clean = prepare_subset(variant, WRITERS[variant](tmp_path / "clean"), tmp_path / "b")
    assert schema.rows == clean.rows and raw_rows(tmp_path / "out") == raw_rows(tmp_path / "b")


def test_a_bad_line_about_movies_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_csv(tmp_path / "raw")
    with (folder / "movies.csv").open("a", encoding="utf-8") as file:
        file.write("99,no genres\n12,Again,Drama\n")
    schema = prepare_subset("latest-small", folder, tmp_path / "out", skip_bad_rows=True)
    assert schema.report["skipped_rows"] == 2
    assert tells(skipped(caplog)[0], "movies.csv, line 13: ... 3 fields")
    assert "movies.csv, line 14: item 12" in skipped(caplog)[1]


def test_books_skip_ratings_off_the_scale(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f'"{user}";"book{user % 5 + n}";"{n}"' for user in range(9) for n in range(6)]
    rows[7] = '"1";"book3";"11"'
    lines(tmp_path / "raw" / "BX-Book-Ratings.csv", ['"User-ID";"ISBN";"Book-Rating"', *rows])
    options = {"min_user": 0, "min_item": 0}
    with pytest.raises(DataError, match=r"line 9: the .*got 11"):
        books.prepare(tmp_path / "raw", tmp_path / "out", **options)
    schema = books.prepare(tmp_path / "raw", tmp_path / "out", skip_bad_rows=True, **options)
    assert schema.report["skipped_rows"] == 1 and schema.report["records_read"] == 53
    assert tells(skipped(caplog)[0], "line 9: ... 0..10, got 11")
