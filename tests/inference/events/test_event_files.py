"""`recommend --events FILE` and `predict --events FILE`: what a service with that file answers."""

from __future__ import annotations

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.columns import with_columns
from recsys_moe.inference.events.journal import LONGEST_LINE
from recsys_moe.inference.files.events import observe_file
from recsys_moe.inference.files.recommend import USERS_PER_PIECE
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.threads import USERS_AT_ONCE
from tests.conftest import Command
from tests.live import START

LATER = START + 400 * 86_400
KNOWN = "u1"
EVENTS: list[dict[str, Any]] = [
    {"user": "new", "item": "i3", "time": LATER, "value": 5},
    {"user": KNOWN, "item": "i7", "time": LATER + 7200, "value": 1, "id": "late"},
    {"user": KNOWN, "item": "i4", "time": LATER},  # two hours before: a service would refuse it
    {"user": "new", "item": "nothing known", "time": LATER + 60},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in EVENTS))
    return path


@pytest.fixture
def informed(sequence_run: Path) -> Predictor:
    """Has observed the events, in the order of time."""
    predictor = Predictor.load(sequence_run)
    ordered = sorted(EVENTS, key=lambda one: one["time"])
    assert predictor.observe(ordered).stored == len(EVENTS)
    return predictor


@pytest.mark.parametrize("user", ["new", KNOWN])
def test_a_list_is_that_after_the_events(
    user: str, sequence_run: Path, informed: Predictor, file: Path, command: Command,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    asked = ("recommend", sequence_run, "--user", user, "--json", "--exclude-seen")
    found = json.loads(command(*asked, "--events", file).out)["items"]
    [wanted] = informed.recommend([user], exclude_seen=True)
    assert [one["item"] for one in found] == [one.item for one in wanted]
    assert [one["watch"] for one in found] == pytest.approx([one.scores["watch"] for one in wanted])
    assert found != json.loads(command(*asked).out)["items"]
    assert "events of 2 users" in caplog.text
    caplog.clear()
    command(*asked[:-2], "--events", file)
    assert "non-personalised" not in caplog.text


def test_files_of_users_and_of_pairs_read_them_too(
    sequence_run: Path, informed: Predictor, file: Path, tmp_path: Path, command: Command
) -> None:
    """The unknown user stands where a file is cut into parts."""
    users = [*["nobody"] * (USERS_AT_ONCE + 1), "new", KNOWN]
    (tmp_path / "users.txt").write_text("\n".join(users))
    given = ("--events", file, "--output")
    lists = ("--users", tmp_path / "users.txt", *given, tmp_path / "lists.jsonl")
    assert command("recommend", sequence_run, *lists).exit_code == 0
    found = list(map(json.loads, (tmp_path / "lists.jsonl").read_text().splitlines()))
    for user, wanted in zip(users, informed.recommend(users), strict=True):
        ranked = next(one for one in found if one["user"] == user)["items"]
        assert [one["item"] for one in ranked] == [one.item for one in wanted], user
    assert found[-2]["items"] != found[0]["items"]
    (tmp_path / "pairs.csv").write_text(f"user,item\nnew,i1\n{KNOWN},i1\nnobody,i1\n")
    pairs = ("--input", tmp_path / "pairs.csv", *given, tmp_path / "scores.csv")
    assert command("predict", sequence_run, *pairs).exit_code == 0
    with (tmp_path / "scores.csv").open() as stream:
        scores = [float(one["watch"]) for one in csv.DictReader(stream)]
    wanted_N = informed.score(["new", KNOWN, "nobody"], ["i1"] * 3).tasks["watch"]
    assert scores == pytest.approx(wanted_N.tolist(), rel=1e-4)
    assert len({*scores}) == 3
    assert len(users) < USERS_PER_PIECE


def test_only_users_with_events_are_told_apart_in_files(
    sequence_run: Path, informed: Predictor
) -> None:
    """The others share one window of nothing, however many they are."""
    rows = pa.table({"user": ["new", "nobody", KNOWN, "new"]})
    for predictor, told in ((informed, {0: "new", 3: "new"}), (Predictor.load(sequence_run), {})):
        resolved, _ = with_columns(predictor, "user", rows["user"], rows)
        assert resolved.identities == told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"user": 1, "item": 2}', "line 5: time must be seconds since 1970"),
        (
            '{"user": 1, "item": 2, "time": 3, "value": "x"}',
            "line 5: value must be a finite number",
        ),
        ('{"item": 2, "time": 3}', "line 5: user must be text"),
        (
            '{"user": 1, "item": 2, "time": 4e9}',  # until 2096
            "line 5: time must be at most 3600 s after the present, got 4000000000; correct",
        ),
        ("[]", "line 5: an event must be an object"),
        ("x" * LONGEST_LINE, "line 5: must be shorter than"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_written(
    line: str, said: str, sequence_run: Path, file: Path, tmp_path: Path, command: Command
) -> None:
    file.write_text(f"{file.read_text()}{line}\n")
    (tmp_path / "pairs.csv").write_text("user,item\nnew,i1\n")
    pairs = ("--input", tmp_path / "pairs.csv", "--output", tmp_path / "scores.csv")
    found = command.fails(3, "predict", sequence_run, *pairs, "--events", file)
    assert said in found and found.endswith("; correct or remove the line")
    assert not (tmp_path / "scores.csv").exists()


def test_ratings_are_checked_by_the_task(sequence_run: Path, file: Path) -> None:
    artifact = Predictor.load(sequence_run).artifact
    tasks = tuple(replace(one, low=1.0, high=4.0) for one in artifact.schema.tasks)
    ranged = replace(artifact, schema=replace(artifact.schema, tasks=tasks))
    with pytest.raises(DataError, match=r"line 1: value is the rating and must be in 1\.\.4, got"):
        observe_file(Predictor(ranged), file)


def test_the_file_of_a_running_service_is_left_as_it_is(sequence_run: Path, file: Path) -> None:
    """Its last line may be on its way to the disk."""
    file.write_text(file.read_text() + '{"user": "other"')
    before = file.read_bytes()
    predictor = Predictor.load(sequence_run)
    observe_file(predictor, file)
    assert predictor.store is not None and len(predictor.store) == 2
    assert file.read_bytes() == before


def test_a_model_without_events_and_a_missing_file_are_refused(
    run: Path, sequence_run: Path, file: Path, command: Command
) -> None:
    asked = ("--user", "u1", "--events")
    said = "--events needs a model that reads events, got one with model.sequence=none; omit it"
    assert said in command.fails(2, "recommend", run, *asked, file)
    with pytest.raises(DataError, match="nowhere.jsonl: no such file; pass a file that"):
        observe_file(Predictor.load(sequence_run), Path("nowhere.jsonl"))
    with pytest.raises(DataError, match="must be a file, got a folder; pass a file that"):
        observe_file(Predictor.load(sequence_run), file.parent)
