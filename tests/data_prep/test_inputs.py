"""Inputs: JSON Lines, zips, gzips; what they unpack to; pipes and empty paths are refused."""

from __future__ import annotations

import gzip
import json
import os
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from data_prep import table
from data_prep.read import delimited, raw_files
from data_prep.read.raw_files import RawFiles
from data_prep.table import pieces
from data_prep.table.files import _text
from recsys_moe.cli.commands import app
from recsys_moe.errors import ConfigError, DataError
from tests.conftest import Command, tells
from tests.data_prep.samples import IDS, columns, frame, hashes, rows_of, save, write_dat

HASH: dict[str, Any] = {**IDS, "protocol": "hash", "timestamp": "when"}


def json_lines(data: pd.DataFrame, path: Path) -> Path:
    """A cell that is missing is null, not there, or empty text in turn."""
    lines = []
    for number, row in enumerate(data.astype(object).to_dict("records")):
        known = {name: value for name, value in row.items() if not pd.isna(value)}
        missing = set(row) - set(known)
        known |= dict.fromkeys(missing, (None, "")[number % 2]) if number % 3 else {}
        lines.append(json.dumps(known))
    path.write_text("\n".join([*lines[:5], "", *lines[5:]]), encoding="utf-8")
    return path


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "folder/x.jsonl"])
def test_json_lines_give_the_rows_of_a_csv(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 7)
    data = frame().assign(stars=[float("nan"), 2.5, *range(38)])
    (tmp_path / "folder").mkdir()
    source = json_lines(data, tmp_path / name)
    source = source.parent if name.startswith("folder") else source
    table.prepare(tmp_path / "json", input=source, engine=engine, **HASH)
    table.prepare(tmp_path / "csv", input=save(data, tmp_path / "x.csv"), **HASH)
    found, wanted = hashes(tmp_path / "json"), hashes(tmp_path / "csv")
    assert {name for name in wanted if found[name] != wanted[name]} == {"schema.json"}


def test_lists_titles_and_numbers_of_json_lines_are_read(tmp_path: Path) -> None:
    items = [
        {"what": f"{n:03d}", "year": 1990 + n, "genres": ["a", f"g{n % 2}"]} for n in range(10)
    ]
    (tmp_path / "i.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    source = save(frame(), tmp_path / "x.csv")
    options: dict[str, Any] = {"item_features": tmp_path / "i.jsonl", **IDS}
    schema = table.prepare(
        tmp_path / "out", input=source, item_feature=["genres:multi=genres"], **options
    )
    assert schema.item_features[0].size == 3  # a, g0, g1
    no_lists = [{**item, "genres": None} for item in items]
    (tmp_path / "i.jsonl").write_text("".join(json.dumps(item) + "\n" for item in no_lists))
    table.prepare(tmp_path / "two", input=source, items=tmp_path / "i.jsonl", **IDS)
    assert columns(tmp_path / "two", "items")["year"] == list(range(1990, 2000))


WRONG = {
    "no object": ("[1, 2]", "must be a JSON object, got '[1, 2]'"),
    "no JSON": ("{'who': 1}", "must be a JSON object"),
    "NaN": ('{"who": NaN}', "NaN is not valid JSON; write null"),
    "nested": ('{"who": {"id": 1}}', "who must be text, a number"),
    "deep list": ('{"who": [[1]]}', "who must be text, a number"),
    "twice": ('{"who": 1, "who": 2}', "'who' appears twice"),
    "half a character": ('{"who": "\\ud800"}', "surrogates not allowed"),
    "deep": ("[" * 100_000, "recursion"),
    "label": ('{"who": "u", "what": "i", "clicked": 7}', "clicked must be 0 or 1"),
    "list beside text": ('{"who": ["u"], "what": "i"}', "must be a list or null"),
}


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize(("line", "rule"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_of_json_is_named(line: str, rule: str, engine: str, tmp_path: Path) -> None:
    source = json_lines(frame(), tmp_path / "x.jsonl")
    good = source.read_text()
    source.write_text(good.replace("\n", f"\n{line}\n", 1))  # as line 2
    with pytest.raises(DataError, match=r"x\.jsonl, line [12]: ") as failure:
        table.prepare(tmp_path / "out", input=source, engine=engine, **HASH)
    assert rule in str(failure.value) and "\n" not in str(failure.value)
    if "list" not in rule:
        options: dict[str, Any] = {"engine": engine, "skip_bad_rows": True, **HASH}
        schema = table.prepare(tmp_path / "out", input=source, **options)
        assert schema.report["skipped_rows"] == 1 and sum(schema.rows.values()) == 40


def test_a_column_that_no_line_of_json_has_is_named(tmp_path: Path) -> None:
    source = json_lines(frame().rename(columns={"clicked": "click"}), tmp_path / "x.jsonl")
    for engine in ("memory", "stream"):
        with pytest.raises(DataError, match="'clicked' is missing.*mean 'click'"):
            table.prepare(tmp_path / "out", input=source, engine=engine, **HASH)


def test_a_zip_is_read_as_the_folder_in_it(tmp_path: Path) -> None:
    data, folder = frame(), tmp_path / "log"
    save(data.iloc[:20], folder / "b.csv.gz")
    save(data.iloc[20:30], folder / "a.parquet")
    json_lines(data.iloc[30:].astype({"what": str}), folder / "c.jsonl")
    (folder / "README.md").write_text("not a table")
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, f"deep/er/{path.name}")
    schema = table.prepare(tmp_path / "out", input=tmp_path / "x.zip", **HASH)
    assert [source.name for source in schema.sources] == ["x.zip"]
    table.prepare(tmp_path / "csv", input=save(data, tmp_path / "x.csv"), **HASH)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "csv")
    with pytest.raises(DataError, match=r"x\.zip: .*--engine memory"):
        table.prepare(tmp_path / "o", input=tmp_path / "x.zip", engine="stream", **HASH)


def test_a_zip_that_cannot_be_read_is_named_with_the_file_in_it(tmp_path: Path) -> None:
    place = tmp_path / "x.zip"
    cases = {"a.csv": "'who' is missing", "a.parquet": "is not a whole Parquet", "a.md": "has no"}
    for name, message in cases.items():
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr(name, "x,y\n1,2\n")
        with pytest.raises(DataError, match=rf"x\.zip.*{message}"):
            table.prepare(tmp_path / "out", input=place, **HASH)
    place.write_bytes(b"PK and so on")
    with pytest.raises(DataError, match=r"x\.zip is not a whole zip"):
        table.prepare(tmp_path / "out", input=place, **HASH)


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("option", ["input", "items"])
def test_a_pipe_is_refused_at_once(option: str, engine: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    places = {"input": save(frame(), tmp_path / "log.csv"), option: tmp_path / "x.csv"}
    with pytest.raises(DataError, match=r"x\.csv: must be a file"):
        table.prepare(tmp_path / "out", engine=engine, **places, **HASH)
    with pytest.raises(DataError, match=r"x\.csv: must be a file"):
        table.prepare(tmp_path / "out", input=tmp_path, **HASH)


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("column", ["who", "clicked", "when"])
def test_a_column_that_is_there_twice_is_refused(column: str, engine: str, tmp_path: Path) -> None:
    source = save(frame(), tmp_path / "x.csv")
    first, _, rest = source.read_text().partition("\n")
    lines = [f"{first},{column},other,other", *(f"{line},1,2,3" for line in rest.splitlines())]
    source.write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"'{column}' appears twice"):
        table.prepare(tmp_path / "out", input=source, engine=engine, **HASH)
    source.write_text("\n".join(lines).replace(f",{column},other", ",more,other", 1))
    table.prepare(tmp_path / "out", input=source, engine=engine, **HASH)  # of others it may be


def test_an_empty_path_is_refused_in_every_command(tmp_path: Path) -> None:
    table_words = ["prepare", "table", "--user", "u", "--item", "i", "--task", "w:binary=c"]
    commands = [
        (["--input"], [*table_words, "--out", "o", "--input", ""]),
        (["--out"], [*table_words, "--input", "x.csv", "--out="]),
        (["--items"], [*table_words, "--input", "x.csv", "--out", "o", "--items", ""]),
        (["--data"], ["fit", "--data", "", "--out", "o"]),
        (["model"], ["evaluate", ""]),
        (["--output"], ["predict", "m", "--input", "x.csv", "--output", ""]),
    ]
    for (name,), words in commands:
        with pytest.raises(ConfigError, match=f"{name} must name a file or folder, got ''"):
            app_tree(words)
    with pytest.raises(ConfigError, match="--input"):
        table.prepare(tmp_path / "o", input="", **IDS)  # type: ignore[arg-type]


def app_tree(words: list[str]) -> None:
    from recsys_moe.cli.commands import _tree

    _tree()(words, prog_name=app.info.name, standalone_mode=False)


def test_pyarrow_reads_text_in_memory_of_its_own() -> None:
    """Its threads let go of it at any time, even while Python ends: of Python's, that aborts."""
    data = b"who,what\n" * 1000
    before = sys.getrefcount(data)
    reader = delimited.arrow_reader(data)
    assert sys.getrefcount(data) == before and reader.read() == data


MIB = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_files, "FREE", MIB)


def bomb(path: Path, kind: int = zipfile.ZIP_DEFLATED, size: int = 64 * MIB) -> Path:
    """Zeros, of which deflate makes a thousandth."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("ratings.dat", bytes(size))
    return path


def announcing(path: Path, size: int) -> Path:
    """The zip of `bomb`, both of whose headers say that it unpacks to `size` bytes."""
    content = bytearray(path.read_bytes())
    central = content.rindex(b"PK\x01\x02")
    struct.pack_into("<I", content, 22, size)  # of the member's own header
    struct.pack_into("<I", content, central + 24, size)
    path.write_bytes(content)
    return path


def refused(place: Path) -> tuple[str, float]:
    """What is said of ratings.dat in a zip, and how many MiB that has taken."""
    tracemalloc.start()
    with pytest.raises(DataError) as error:
        RawFiles(place).read("ratings.dat")
    peak = tracemalloc.get_traced_memory()[1] / MIB
    tracemalloc.stop()
    return str(error.value), peak


@pytest.mark.usefixtures("small")
def test_a_zip_that_unpacks_to_a_thousand_times_its_size_is_refused_half_way(
    tmp_path: Path,
) -> None:
    """64 MiB of zeros in 64 KiB: may unpack to 100 * 64 KiB = 6.3 MiB, and is read no further."""
    message, peak = refused(bomb(tmp_path / "x.zip"))
    most = raw_files.MOST * (tmp_path / "x.zip").stat().st_size
    assert tells(message, f"x.zip/ratings.dat: ... {most} bytes")
    assert peak < 20


@pytest.mark.usefixtures("small")
def test_what_a_zip_announces_is_not_believed(tmp_path: Path) -> None:
    message, peak = refused(announcing(bomb(tmp_path / "x.zip"), 10))
    assert tells(message, "x.zip ... whole zip")
    assert peak < 4


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_could_unpack_gigabytes_at_once_is_not_begun(tmp_path: Path, kind: int) -> None:
    message, peak = refused(announcing(bomb(tmp_path / "x.zip", kind), 10))
    assert tells(message, "x.zip/ratings.dat: ... deflate")
    assert peak < 1


@pytest.mark.usefixtures("small")
def test_a_gzip_that_unpacks_to_a_thousand_times_its_size_is_refused_half_way(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"user,item,x\n" + b"1,2,1\n" * 10 * MIB))
    words = ["--user", "user", "--item", "item", "--task", "x:binary=x", "--engine", "memory"]
    out = ["--out", tmp_path / "out"]
    message = command.fails(3, "prepare", "table", "--input", tmp_path / "x.csv.gz", *words, *out)
    assert "x.csv.gz: must unpack to at most" in message
    assert not (tmp_path / "out").exists()


def test_small_files_may_be_packed_as_small_as_they_can(tmp_path: Path) -> None:
    """2 MiB of one letter in 2 KiB, a thousand times less."""
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a" * 2 * MIB))
    assert len(_text(tmp_path / "x.csv.gz")) == 2 * MIB
    assert RawFiles(bomb(tmp_path / "x.zip", size=2 * MIB)).read("ratings.dat") == bytes(2 * MIB)


@pytest.mark.parametrize("folder", ["../..", "/etc/cron.d", "a/../.."])
def test_a_zip_that_names_places_elsewhere_writes_nowhere(
    tmp_path: Path, command: Command, folder: str
) -> None:
    raw, inner = write_dat(tmp_path / "raw"), tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    with zipfile.ZipFile(inner / "x.zip", "w") as archive:
        for path in raw.iterdir():
            archive.writestr(f"{folder}/{path.name}", path.read_bytes())
    before = {path for path in tmp_path.rglob("*")}
    words = ["--variant", "1m", "--partial", "--source", inner / "x.zip", "--out", inner / "data"]
    assert command("prepare", "movielens", *words).exit_code == 0
    new = {path for path in tmp_path.rglob("*")} - before
    assert new and all(path.is_relative_to(inner / "data") for path in new)
