"""The contract on disk refuses what it does not understand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recsys_moe.schema import DataError, Schema


def test_json_round_trip_is_exact(prepared: Path) -> None:
    text = (prepared / "schema.json").read_text()
    assert Schema.from_json(text).to_json() == text


def test_a_folder_without_schema_is_not_prepared_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not prepared data.*recsys-moe prepare"):
        Schema.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format_version must be 1, got 99"),
        ({"rows": None, "surprise": 1}, "surprise"),
        ({"user": None}, "schema.json"),
        ({"tasks": [{"name": "a", "kind": "ordinal", "column": "a"}]}, "kind must be one of"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_in_one_line(
    prepared: Path, change: dict[str, object], message: str
) -> None:
    raw = {**json.loads((prepared / "schema.json").read_text()), **change}
    with pytest.raises(DataError, match=message) as caught:
        Schema.from_json(json.dumps(raw))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object, got list"),
        ('{"format_version": 1}', "key 'user' is missing; prepare the data again"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^schema\.json: {message}"):
        Schema.from_json(text)
