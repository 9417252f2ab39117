"""A table of one's own that is wrong: the place, the value and the remedy in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.schema import RESERVED, ConfigError, DataError
from tests.data_prep.samples import IDS, frame, hashes, rows_of, save

CELLS = {
    "label of 2": ("clicked", 2, r"line 6: clicked must be 0 or 1 .*got '2'"),
    "label in words": ("clicked", "maybe", r"line 6: clicked must be 0 or 1 .*got 'maybe'"),
    "rating in words": ("stars", "good", r"line 6: stars must be a finite number .*got 'good'"),
    "infinite rating": ("stars", "inf", r"line 6: stars must be a finite number .*got 'inf'"),
    "rating of nan": ("stars", "nan", r"line 6: stars must be a finite number .*got 'nan'"),
    "huge rating": ("stars", "1e39", r"line 6: stars must be a finite number .*got '1e39'"),
    "no user": ("who", "", "line 6: who must not be empty, got ''"),
    "blank item": ("what", "  ", "line 6: what must not be empty, got '  '"),
    "time in words": ("when", "noon", r"line 6: when must be seconds .*got 'noon'"),
}


@pytest.mark.parametrize(("column", "value", "message"), CELLS.values(), ids=CELLS)
def test_a_wrong_cell_is_named_and_nothing_is_left(
    column: str, value: object, message: str, tmp_path: Path
) -> None:
    out, source = tmp_path / "out", tmp_path / "x.csv"
    table.prepare(out, input=save(frame(), source), timestamp="when", **IDS)
    before = hashes(out)
    data = frame().astype(object)
    data.loc[4, column] = value
    save(data, source)
    with pytest.raises(DataError, match=r"x\.csv, " + message) as failure:
        table.prepare(out, input=source, timestamp="when", force=True, **IDS)
    assert "\n" not in str(failure.value)
    assert hashes(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.csv"]


def test_a_wrong_cell_of_parquet_is_named_by_row(tmp_path: Path) -> None:
    data = frame()
    data.loc[4, "clicked"] = 2
    with pytest.raises(DataError, match=r"x\.parquet, row 5: clicked .*got 2"):
        table.prepare(tmp_path / "o", input=save(data, tmp_path / "x.parquet"), **IDS)
    data = frame().assign(who=[None, *["u"] * 39])
    with pytest.raises(DataError, match=r"x\.parquet, row 1: who .*got null"):
        table.prepare(tmp_path / "o", input=save(data, tmp_path / "x.parquet"), **IDS)


def test_line_numbers_count_quoted_line_breaks_and_blank_lines(tmp_path: Path) -> None:
    text = 'who,what,note,clicked,stars\nu1,a,"two\nlines",1,3\n\nu2,c,"",7,3\n'
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match="line 5: clicked .*got '?7"):
        table.prepare(tmp_path / "out", input=tmp_path / "x.csv", **IDS)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_missing_column_is_named_with_a_suggestion(name: str, tmp_path: Path) -> None:
    source = save(frame().rename(columns={"clicked": "click"}), tmp_path / name)
    with pytest.raises(DataError, match="'clicked' is missing.*'click'"):
        table.prepare(tmp_path / "out", input=source, **IDS)


def repeated() -> pd.DataFrame:
    data = frame()
    return pd.concat([data, data.iloc[[2, 4]].assign(clicked=1, stars=5.0)])


def test_a_repeated_pair_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    source = save(repeated(), tmp_path / "x.csv")
    message = r"line 42: user 'u2' .*item '004' .*2 .*--duplicates"
    with pytest.raises(DataError, match=message):
        table.prepare(tmp_path / "out", input=source, **IDS)


@pytest.mark.parametrize(
    ("choice", "rows", "labels"),
    [
        ("first", 40, [(0.0, None)]),
        ("last", 40, [(1.0, 5.0)]),
        ("keep", 42, [(0.0, None), (1.0, 5.0)]),
    ],
)
def test_of_a_repeated_pair_one_row_can_be_chosen_or_all_kept(
    choice: str, rows: int, labels: list[tuple[object, ...]], tmp_path: Path
) -> None:
    source = save(repeated(), tmp_path / "x.csv")
    schema = table.prepare(tmp_path / "out", input=source, duplicates=choice, **IDS)
    found = rows_of(tmp_path / "out")
    assert len(found) == rows
    assert [row[2:] for row in found if row[:2] == ("u2", "004")] == labels
    assert schema.report == ({} if choice == "keep" else {"dropped_repeats": 2})


def test_a_pair_of_training_in_the_test_file_is_a_repeated_pair(tmp_path: Path) -> None:
    data = frame()
    parts = {"train": data.iloc[:30], "val": data.iloc[30:35], "test": data.iloc[[35, 3]]}
    files = {name: save(part, tmp_path / f"{name}.csv") for name, part in parts.items()}
    with pytest.raises(DataError, match=r"test\.csv, line 3: user 'u3'"):
        table.prepare(tmp_path / "out", **files, **IDS)


FILES = {
    "header only": ("x.csv", b"who,what,clicked,stars\n", r"x\.csv: has no rows"),
    "empty csv": ("x.csv", b"", r"x\.csv: column 'who' is missing; it has none"),
    "not parquet": ("x.parquet", b"PAR1 and so on", r"x\.parquet: is not a whole Parquet file"),
    "not gzip": ("x.csv.gz", b"who,what", r"x\.csv\.gz: is not a whole gzip file"),
    "cut gzip": ("x.csv.gz", gzip.compress(b"who,what" * 9)[:-9], "is not a whole gzip file"),
    "another kind": ("x.xlsx", b"", r"x\.xlsx: must be one of \.csv"),
}


@pytest.mark.parametrize(("name", "content", "message"), FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_read_is_named(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as failure:
        table.prepare(tmp_path / "out", input=tmp_path / name, **IDS)
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "out").exists()


def test_a_place_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such file"):
        table.prepare(tmp_path / "out", input=tmp_path / "nowhere", **IDS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: has no \.csv"):
        table.prepare(tmp_path / "out", input=tmp_path / "empty", **IDS)


def test_a_type_that_cannot_be_a_label_or_id_is_named(tmp_path: Path) -> None:
    nested = pa.table({"who": ["u"], "what": ["i"], "clicked": [[1]], "stars": [1.0]})
    pq.write_table(nested, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"clicked must hold numbers, not list"):
        table.prepare(tmp_path / "out", input=tmp_path / "x.parquet", **IDS)
    data = frame().assign(who=0.5)
    with pytest.raises(DataError, match=r"row 1: who .*got 0\.5"):
        table.prepare(tmp_path / "out", input=save(data, tmp_path / "x.parquet"), **IDS)


OPTIONS = {
    "no task": ({"tasks": []}, "--task must be given at least once"),
    "task spelling": ({"tasks": ["clicked"]}, "NAME:KIND=COLUMN, .* got 'clicked'"),
    "task kind": ({"tasks": ["w:binry=clicked"]}, "got 'binry'; did you mean 'binary'"),
    "task twice": ({"tasks": ["w:binary=a", "w:binary=b"]}, "names must differ, got 'w' twice"),
    **{
        name: (
            {"tasks": ["watch:binary=clicked", f"{name}:binary=a"]},
            f"--task: task name must not be user, item, .*got '{name}'",
        )
        for name in RESERVED
    },
    "calibrated": (
        {"tasks": ["y_calibrated:regression=stars", "y:binary=clicked"]},
        "--task: task name must not be 'y_calibrated'",
    ),
    "weight": ({"tasks": ["weight:binary=a"], "weight": "b"}, "--task: .*got 'weight'"),
    "no input": ({"input": None}, "either --input, or all three"),
    "two inputs": ({"train": Path("x")}, "either --input, or all three"),
    "no binary": ({"tasks": ["r:regression=stars"], "negatives": "per-user"}, "a binary task"),
    "negatives": ({"negatives": "per_user"}, "got 'per_user'; did you mean 'per-user'"),
    "duplicates": ({"duplicates": "lats"}, "got 'lats'; did you mean 'last'"),
    "no timestamp": ({"protocol": "time"}, "--protocol time needs --timestamp COLUMN"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_a_wrong_option_is_a_config_error(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    source = save(frame(), tmp_path / "x.csv")
    with pytest.raises(ConfigError, match=message):
        table.prepare(tmp_path / "out", **{"input": source, **IDS, **options})


def test_a_quote_without_end_in_a_large_file_is_one_line_of_error(tmp_path: Path) -> None:
    rows = [f'u{n},"{n:03d}",1,3' for n in range(20_000)]
    rows[9] = 'u9,"009,1,3'
    (tmp_path / "x.csv").write_text("\n".join(["who,what,clicked,stars", *rows]))
    # the field goes on to the next quote: '009,1,3', a line break, 'u10,', and then 010
    with pytest.raises(DataError, match=r"line 12: what .*quote") as failure:
        table.prepare(tmp_path / "out", input=tmp_path / "x.csv", **IDS)
    assert "\n" not in str(failure.value)
    rows[9] = 'u9,009",1,"3'  # now nothing pairs the last quote
    rows[10:] = [row.replace('"', "") for row in rows[10:]]
    (tmp_path / "x.csv").write_text("\n".join(["who,what,clicked,stars", *rows]))
    with pytest.raises(DataError, match=r"x\.csv") as failure:
        table.prepare(tmp_path / "out", input=tmp_path / "x.csv", **IDS)
    assert "\n" not in str(failure.value)
