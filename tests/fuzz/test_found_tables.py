"""Regressions that fuzzing of tables found: CSV, Parquet, zip archives."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys_moe.data.streaming import open_rows
from recsys_moe.errors import DataError
from recsys_moe.schema import Schema
from tests.conftest import Command, tells
from tests.fuzz.targets import KEPT, sign

RUN, DATA = KEPT / "ids" / "run", KEPT / "ids" / "data"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


ROWS = "user,item,x\n1,2,1\n2,3,0\n3,3,1\n"
STREAMED = ("--protocol", "hash", "--engine", "stream")


def refused(command: Command, folder: Path, log: bytes | str, *words: object, code: int = 3) -> str:
    """The line with which `prepare table` refuses this log."""
    (folder / "log.csv").write_bytes(log.encode() if isinstance(log, str) else log)
    columns = ["--user", "user", "--item", "item", "--task", "x:binary=x"]
    out = ["--out", folder / "out"]
    given = ["--input", folder / "log.csv", *columns, *words, *out]
    return command.fails(code, "prepare", "table", *given)


def no_parquet(path: Path) -> None:
    """Between the magic bytes of one stands nothing that a reader understands."""
    path.write_bytes(b"PAR1" + b"\xff" * 20 + (20).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("broken", [no_parquet, lambda path: path.write_bytes(b"no Parquet")])
@pytest.mark.parametrize("file", ["users.parquet", "items.parquet"])
def test_ids_of_data_that_cannot_be_read_are_named(
    command: Command, data: Path, file: str, broken: object
) -> None:
    broken(data / file)  # type: ignore[operator]
    for words in (["evaluate", RUN, "--data", data], ["doctor", "--data", data]):
        done = command(*words)
        assert done.exit_code == 3
        assert f"{file} cannot be read as Parquet" in done.out + done.err


def test_users_that_cannot_be_read_are_data_that_are_invalid(
    command: Command, tmp_path: Path
) -> None:
    no_parquet(tmp_path / "users.parquet")
    message = command.fails(
        3, "recommend", RUN, "--users", tmp_path / "users.parquet", "--output", tmp_path / "o.csv"
    )
    assert f"--users {tmp_path}/users.parquet cannot be read: " in message


def pairs(path: Path) -> bytes:
    pq.write_table(pa.table({"user": ["1"] * 5, "item": ["1"] * 5}), path)
    return path.read_bytes()


def lists(path: Path) -> bytes:
    pq.write_table(pa.table({"user": [[1], [2]], "item": [1, 2]}), path)
    return path.read_bytes()


def fewer_rows(path: Path) -> bytes:
    """In the footer, by Thrift's compact protocol: field 3 of the file (0x16), zigzag(5) = 10, then
    field 4 (0x19), the list of row groups; zigzag(6) = 12."""
    return pairs(path).replace(b"\x16\x0a\x19", b"\x16\x0c\x19")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lists, "'user'"),
        (lambda path: pairs(path).replace(b"user", b"\xf2ser"), "in.parquet ... 'utf-8' ... 0xf2"),
        (fewer_rows, "in.parquet ... row groups"),
    ],
    ids=["lists", "a name that is not UTF-8", "fewer rows than stated"],
)
def test_pairs_in_damaged_parquet_are_refused(
    command: Command, tmp_path: Path, content: Callable[[Path], bytes], message: str
) -> None:
    path, out = tmp_path / "in.parquet", tmp_path / "out.csv"
    path.write_bytes(content(path))
    assert tells(command.fails(3, "predict", RUN, "--input", path, "--output", out), message)
    assert not out.exists()


@pytest.mark.parametrize("name", ["wh\0o", '"a\nb"'])
def test_a_header_that_two_readers_read_differently_is_refused(
    command: Command, tmp_path: Path, name: str
) -> None:
    items = tmp_path / "items.csv"
    items.write_text(f"item,{name}\n2,a\n3,b\n")
    assert f"{items}: " in refused(command, tmp_path, ROWS, "--items", items)


def test_a_carriage_return_in_the_first_line_is_named(command: Command, tmp_path: Path) -> None:
    log = "user,item,y\rz,x\n1,2,1,1\n2,3,0,1\n3,3,1,1\n"
    assert tells(refused(command, tmp_path, log), "log.csv: ... first line")


def test_what_is_no_utf_8_cannot_be_read_in_pieces(command: Command, tmp_path: Path) -> None:
    names = b"user,item,x,caf\xe9\n1,2,1,a\n2,3,0,b\n3,3,1,c\n"
    message = refused(command, tmp_path, names, *STREAMED)
    assert tells(message, f"{tmp_path}/log.csv, line 1: ... 0xe9 ... --encoding")
    row = b"user,item,x\n1,2,1\n2\xe9,3\n3,3,1\n"
    message = refused(command, tmp_path, row, *STREAMED, "--skip-bad-rows")
    assert message.startswith(f"error: {tmp_path}/log.csv, line 3: byte 0xe9")
    assert message.count("\n") <= 1


def test_a_file_of_a_byte_order_mark_alone_is_empty(command: Command, tmp_path: Path) -> None:
    items = tmp_path / "items.csv"
    items.write_bytes(b"\xef\xbb\xbf")
    message = refused(command, tmp_path, ROWS, "--items", items)
    assert f"{items}: the file is empty" in message


def test_a_name_in_parquet_that_is_no_text_is_named(data: Path) -> None:
    [part] = (data / "test").iterdir()
    content = part.read_bytes()
    part.write_bytes(content.replace(b"user_index", b"user_\xdfndex"))
    with pytest.raises(DataError, match=f"{part} .*Parquet: 'utf-8'"):
        open_rows(data, Schema.load(data), "test", 10**6)


def test_a_zip_with_a_name_that_is_no_text_is_damaged(command: Command, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("\u00fc.data", "")  # not ASCII, so both of its names are marked as UTF-8
        archive.writestr("ml-100k/u.data", "1\t1\t5\t0\n")
        archive.writestr("ml-100k/u.item", "")
    content = (tmp_path / "ml.zip").read_bytes()
    first = content.index(b"ml-100k/u.data")
    named = content[: first - 24] + b"\x00\x08" + content[first - 22 : first]  # the mark, bit 11
    (tmp_path / "ml.zip").write_bytes(named + b"\x9e" + content[first + 1 :])
    message = command.fails(
        3, "prepare", "movielens", "--variant", "100k", "--source", tmp_path / "ml.zip",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert tells(message, "ml.zip ... whole zip ... 'utf-8'")


def no_text(model: Path, file: str) -> Path:
    """The first column of texts ends in a byte that is no UTF-8, and the manifest fits."""
    path = model / f"{file}.parquet"
    table = pq.read_table(path)
    column = next(n for n, field in enumerate(table.schema) if field.type == pa.string())
    values = [value.encode() + b"\xe7" for value in table[column].to_pylist()]
    broken = pa.array(values, pa.binary()).view(pa.string())  # which pyarrow does not check
    pq.write_table(table.set_column(column, table.schema.names[column], broken), path)
    sign(model)
    return path


def no_text_for_a_name(model: Path, file: str) -> Path:
    path = model / f"{file}.parquet"
    name = pq.read_table(path).column_names[0].encode()
    path.write_bytes(path.read_bytes().replace(name, b"\xe7" + name[1:]))
    sign(model)
    return path


@pytest.mark.parametrize(
    ("broken", "file"),
    [(no_text, "features"), (no_text_for_a_name, "items"), (no_text_for_a_name, "users")],
)
def test_tables_of_a_model_that_hold_what_is_no_text_are_damaged(
    command: Command, tmp_path: Path, broken: Callable[[Path, str], Path], file: str
) -> None:
    model, pairs = tmp_path / "model", tmp_path / "in.csv"
    shutil.copytree(KEPT / "features" / "run" / "model", model)
    path = broken(model, file)
    pairs.write_text("user,item\n1,1\n")
    message = command.fails(3, "predict", model, "--input", pairs, "--output", tmp_path / "out.csv")
    assert f"{path} is damaged: " in message
