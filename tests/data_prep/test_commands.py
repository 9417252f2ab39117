"""The commands of `recsys-moe prepare` pass their options on by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from recsys_moe.cli import prepare as commands


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
