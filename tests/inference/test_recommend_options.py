"""`recommend`: files of candidates, options that would do nothing, what a terminal is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from recsys_moe.cli import recommend as commands
from recsys_moe.inference.predictor import Recommendation
from tests.conftest import Command, tells


@pytest.mark.parametrize("name", ["c.tsv", "c.CSV", "c.tab.gz", "c.pq"])
def test_candidates_are_read_from_every_kind_of_table(
    run: Path, command: Command, tmp_path: Path, name: str
) -> None:
    table = pd.DataFrame({"item": [3, 5], "more": [1, 1]})
    if name.endswith("pq"):
        table.to_parquet(tmp_path / name)
    else:
        separator = "," if name.endswith("CSV") else "\t"
        table.to_csv(tmp_path / name, index=False, sep=separator)
    words = ["recommend", run, "--user", "1", "--json", "--candidates"]
    found = json.loads(command(*words, tmp_path / name).out)
    assert found == json.loads(command(*words, "3,5").out)
    assert {entry["item"] for entry in found["items"]} == {3, 5}


def test_a_file_of_candidates_that_is_not_there_is_named(run: Path, command: Command) -> None:
    message = command.fails(3, "recommend", run, "--user", "1", "--candidates", "nofile.tsv")
    assert "--candidates nofile.tsv: no such file" in message


def test_titles_cannot_command_a_terminal() -> None:
    entry = Recommendation(1, "7", "red\x1b[31m\nline\x07", {"watch": 0.5})
    lines = commands.table([entry], ["watch"]).splitlines()
    assert lines[1].endswith("red?[31m?line?") and len(lines) == 2


def test_overwrite_without_an_output_is_refused(run: Path, command: Command) -> None:
    message = command.fails(2, "recommend", run, "--user", "1", "--overwrite")
    assert tells(message, "--overwrite ... --output")
