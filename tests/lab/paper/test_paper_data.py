"""What `paper` says of the data is what --data holds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.lab.paper import study
from recsys_moe.lab.paper.recipes import recipes
from recsys_moe.schema import Schema
from tests.conftest import Command


@pytest.mark.parametrize("recipe", ["fig4_k", "table1_books"])
def test_paper_names_the_data_that_it_is_given(
    prepared: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    recipe: str,
) -> None:
    def nothing(*args: Any, **options: Any) -> None:
        """The runs themselves are another test's."""

    monkeypatch.setattr(study, "run_paper", nothing)
    with caplog.at_level(logging.INFO, logger="recsys_moe"):
        assert command("paper", recipe, "--data", prepared, "--out", tmp_path).exit_code == 0
    schema = Schema.load(prepared)
    assert f"data: {schema.name} (protocol {schema.protocol}), {schema.rows['train']} rows" in (
        caplog.text
    )
    assert f"the recipe is made for: {recipes()[recipe].prepare}" in caplog.text


def test_no_recipe_says_which_data_it_has_been_given() -> None:
    assert not [name for name, recipe in recipes().items() if "MovieLens-" in recipe.reading]
