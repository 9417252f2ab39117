"""Text in another encoding: named by its line, read where it is named, never mojibake."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from data_prep import table
from data_prep.table import pieces
from recsys_moe import encodings
from recsys_moe.errors import ConfigError, DataError
from tests.data_prep.samples import columns, hashes

TASK = {"user": "who", "item": "what", "tasks": ["watch:binary=clicked"]}
NAMES = ["Zo\u00eb", "Ji\u0159\u00ed", "Ana", "\u5f20"]
"""Of one byte and several in UTF-8; the second and the last are not in Latin-1."""


def text(names: list[str], rows: int = 40) -> str:
    lines = [f"{names[n % len(names)]},i{n // len(names)},{n % 2}" for n in range(rows)]
    return "\n".join(["who,what,clicked", *lines, ""])


def prepare(source: Path, out: Path, **options: Any) -> list[object]:
    table.prepare(out, input=source, **TASK, **options)
    return columns(out, "users")["user"]


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_one_wrong_byte_is_an_error_with_its_line(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "PIECE", 64)  # so that it is not in the first one
    data = text(NAMES).encode().split(b"\n")
    data[17] = b"Zo\xeb,i99,1"  # the header is line 1
    whole = b"\n".join(data)
    (tmp_path / name).write_bytes(gzip.compress(whole) if name.endswith("gz") else whole)
    with pytest.raises(DataError, match=rf"{name}, line 18: byte 0xeb .*--encoding"):
        prepare(tmp_path / name, tmp_path / "out", engine=engine, protocol="hash")
    with pytest.raises(DataError, match=r"line 18: byte 0xeb"):
        prepare(tmp_path / name, tmp_path / "out", protocol="hash", skip_bad_rows=True)


def test_the_line_is_named_for_a_column_that_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"who,what,clicked,note\nu,i,1,\xe9\n")
    for engine in ("memory", "stream"):
        with pytest.raises(DataError, match="line 2: byte 0xe9"):
            prepare(tmp_path / "x.csv", tmp_path / "out", engine=engine, protocol="hash")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_text_is_named_as_such(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text(NAMES).encode(encoding))
    for engine in ("memory", "stream"):
        with pytest.raises(DataError, match=f"{encoding.upper()}, .*--encoding {encoding}$"):
            prepare(tmp_path / "x.csv", tmp_path / "out", engine=engine, protocol="hash")


@pytest.mark.parametrize(
    ("encoding", "names"),
    [
        ("utf-8-sig", NAMES),
        ("UTF-16", NAMES),
        ("utf-16-be", NAMES),
        ("gb18030", NAMES),
        ("cp1250", NAMES[:3]),
        ("latin-1", NAMES[::2]),
        ("cp1252", [NAMES[0], "\u20ac"]),
    ],
)
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_a_named_encoding_gives_the_ids_and_bytes_of_utf_8(
    encoding: str, names: list[str], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "TEXT_BLOCK", 100)
    (tmp_path / "x.csv").write_bytes(text(names).encode(encoding))
    (tmp_path / "8.csv").write_text(text(names), encoding="utf-8")
    found = prepare(
        tmp_path / "x.csv", tmp_path / "x", encoding=encoding, engine=engine, protocol="hash"
    )
    assert found == prepare(tmp_path / "8.csv", tmp_path / "8", protocol="hash") == sorted(names)
    differ = {
        name for name, sha in hashes(tmp_path / "x").items() if hashes(tmp_path / "8")[name] != sha
    }
    assert differ == {"schema.json"}  # the hash of the source, and the command


def test_titles_and_features_are_in_that_encoding_too(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text(["a", "b"]))
    items = "what,title,country\n" + "".join(
        f"i{n},Am\u00e9lie {n},Espa\u00f1a\n" for n in range(20)
    )
    (tmp_path / "i.csv").write_bytes(items.encode("cp1252"))
    options: dict[str, Any] = {
        "items": tmp_path / "i.csv",
        "item_features": tmp_path / "i.csv",
        "item_feature": ["land:categorical=country"],
    }
    with pytest.raises(DataError, match=r"i\.csv, line 2: byte 0xe9"):
        prepare(tmp_path / "x.csv", tmp_path / "out", **options)
    prepare(tmp_path / "x.csv", tmp_path / "out", encoding="cp1252", **options)
    assert columns(tmp_path / "out", "items")["title"][0] == "Am\u00e9lie 0"


def test_bytes_that_are_not_of_the_named_encoding_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text(["a"]).encode() + b"b\x81,i,1\n")  # undefined in cp1252
    with pytest.raises(DataError, match="line 42: byte 0x81 is not cp1252"):
        prepare(tmp_path / "x.csv", tmp_path / "out", encoding="cp1252")


@pytest.mark.parametrize("encoding", ["utf-9", "", "hex", "utf\0", "undefined"])
def test_an_unknown_encoding_is_a_config_error(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--encoding must be .*cp1252"):
        prepare(tmp_path / "x.csv", tmp_path / "out", encoding=encoding)


def test_lines_are_counted_in_wide_text_across_pieces() -> None:
    half = {"utf-16": b"\x00\xdc", "utf-16-be": b"\xdc\x00", "utf-8": b"\xff"}  # of a character
    for encoding, wrong in half.items():
        data = ("ab\n\u5f20\n" * 3).encode(encoding) + wrong
        for size in (1, 2, 3, 7, 1000):
            pieces = [data[n : n + size] for n in range(0, len(data), size)]
            with pytest.raises(DataError, match="x, line 7: byte"):  # after three times two lines
                encodings.check(pieces, encoding, "x")


def test_text_that_utf_16_cannot_be_is_refused_by_file_and_option(tmp_path: Path) -> None:
    """UTF-8 without a mark, and without an even number of bytes."""
    for text in (b"user,item,y\n1,2,1\n", b"user,item,y\n1,2,1"):
        for name in ("utf-16", "utf-32"):
            with pytest.raises(DataError, match="log.csv.*--encoding"):
                encodings.to_utf8(text, name, "log.csv")
