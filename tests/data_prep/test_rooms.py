"""The rooms of data_prep: each imports rooms on lines above its own, sources not each other."""

from __future__ import annotations

import pytest

from tests.test_layers import FILES, imports_in, imports_of, inside, room

PACKAGES = (
    "ids rows options features proposals",
    "read split write",
    "movielens books table synthetic cut",
    "prepare",
)
FLOOR = {name: floor for floor, rooms in enumerate(PACKAGES) for name in rooms.split()}


def offences(module: str, imported: set[str]) -> list[str]:
    """Rooms that `module` must not know; those of the lowest line may know each other."""
    rooms = {room(name) for name in imported if name.startswith("data_prep.")} - {room(module)}
    return sorted(r for r in rooms if FLOOR[r] >= max(FLOOR[room(module)], 1))


@pytest.mark.parametrize("module", [m for m in FILES if m.startswith("data_prep.")])
def test_a_package_imports_only_layers_below(module: str) -> None:
    assert offences(module, imports_of(module)) == []


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("data_prep.books", "from data_prep.movielens import prepare", 1),
        ("data_prep.split.splits", "def f():\n    from data_prep.write import parts", 1),
        ("data_prep.rows", "from data_prep import ids, table", 1),
        ("data_prep.synthetic", "from data_prep import read, rows, split, write", 0),
    ],
)
def test_an_import_upwards_or_sideways_is_an_offence(module: str, source: str, count: int) -> None:
    assert len(offences(module, imports_in(source, module))) == count


def test_the_front_of_data_prep_is_empty() -> None:
    """Its name is generic, so that it must not do anything in programs that have another one."""
    assert FILES["data_prep"].read_text(encoding="utf-8") == ""
    assert {room(name) for name in FILES if inside(name, "data_prep") and "." in name} == {*FLOOR}
