"""The commands of `recsys-moe prepare` pass their options on by name, and print the schema."""

from __future__ import annotations

import importlib
import inspect
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.cli import prepare as commands
from recsys_moe.schema import Schema
from tests.conftest import Command, tells
from tests.data_prep.samples import frame, save


def defaults(function: Any) -> dict[str, Any]:
    """Default by parameter; required ones have Parameter.empty."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("source", ["movielens", "books", "table", "synthetic"])
def test_a_command_has_the_options_of_its_source_with_their_defaults(source: str) -> None:
    options = defaults(getattr(commands, source))
    assert options.pop("as_json") is False
    known = defaults(importlib.import_module(f"data_prep.{source}").prepare)
    assert options.keys() <= known.keys()
    differ = {name for name, default in options.items() if default != known[name]}
    assert differ <= {"source"}  # the command may leave it out, a caller says None
    required = {name for name, default in known.items() if default is inspect.Parameter.empty}
    assert required <= options.keys()


def test_the_command_on_record_is_the_one_that_was_typed(command: Command, tmp_path: Path) -> None:
    data = frame().assign(mass=1, at="03.02.2024").astype(object)
    data.loc[4, "clicked"] = "x"
    users = save(data[["who"]].drop_duplicates().assign(sex="f"), tmp_path / "users.csv")
    source = save(data, tmp_path / "x.csv")
    places = ["--input", source, "--user-features", users, "--out", tmp_path / "out"]
    typed = """prepare table --user who --item what --task watch:binary=clicked --timestamp at
        --timestamp-unit ms --day-first --encoding cp1252 --weight mass
        --user-feature gender:categorical=sex --negatives per-user --negative-ratio 0.5
        --fractions 0.6,0.2,0.2 --duplicates last --skip-bad-rows --protocol hash --seed 3"""
    words = shlex.split(typed)
    without = [word for word in words if word != "--skip-bad-rows"]
    assert tells(command.fails(3, *without, *places), "x.csv, line 6: clicked ... got 'x'")
    assert "skipped rows: 1" in command(*words, *places).out
    schema = Schema.load(tmp_path / "out")
    assert shlex.split(schema.command) == words
    assert (schema.report["skipped_rows"], schema.weight) == (1, "weight")
    more = ["--overwrite", "--engine", "stream", "--max-memory-mb", "64", "--json"]
    assert json.loads(command(*words, *places, *more).out) == json.loads(schema.to_json())


def test_popularity_and_context_are_options_too(command: Command, tmp_path: Path) -> None:
    ids = ["prepare", "table", "--user", "who", "--item", "what", "--task", "watch:binary=clicked"]
    ids += ["--input", save(frame(), tmp_path / "x.csv")]
    drawn = ["--negatives", "per-user", "--negative-distribution", "popularity"]
    for name, words in {"drawn": drawn, "context": ["--context", "at:numeric=when"]}.items():
        assert command(*ids, *words, "--out", tmp_path / name).exit_code == 0
        assert " ".join(words) in Schema.load(tmp_path / name).command
    assert Schema.load(tmp_path / "drawn").negatives == "popularity"
