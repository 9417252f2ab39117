"""Zips and gzips from strangers: what they unpack to, what they name, what they announce."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from data_prep.read import raw_files
from data_prep.read.raw_files import RawFiles
from data_prep.table.files import _text
from recsys_moe.schema import DataError
from tests.conftest import Command, tells
from tests.data_prep.samples import write_dat

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
