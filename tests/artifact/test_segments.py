"""Rows of ids that training does not know are judged apart, by the metrics of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from recsys_moe.artifact.segments import Segments
from recsys_moe.config.settings import parse_config
from recsys_moe.data.rows import Columns
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, Command


def columns(user: list[int], item: list[int]) -> Columns:
    users, items = (torch.tensor(values, dtype=torch.int32) for values in (user, item))
    return Columns(users, items, torch.zeros(len(user), 2))


def test_a_row_is_in_the_segment_of_what_training_rows_say_of_its_ids(prepared: Path) -> None:
    """Training: users 0 and 1, items 0 and 1; 7 has an index and no row, `size` has none."""
    schema = Schema.load(prepared)
    segments = Segments(columns([0, 1], [1, 0]), schema)
    assert segments.result() == {}
    user = torch.tensor([0, 1, 0, schema.user.size, 7, 7])
    item = torch.tensor([0, 1, 7, 0, 1, schema.item.size])
    labels_BT = torch.tensor([[1.0, 5], [0, torch.nan], [1, 4], [1, 2], [0, torch.nan], [1, 3]])
    logits_BT = torch.tensor([[2.0, 3], [1, 9], [-1, 4], [0, 3], [0, 9], [0, 1]])
    segments.update(Request(user, item), (logits_BT, labels_BT))
    found = segments.result()
    assert {name: one["rows"] for name, one in found.items()} == {
        "both_known": 2,
        "user_unseen": 2,
        "item_unseen": 1,
        "both_unseen": 1,
    }
    watch = {name: one["tasks"]["watch"]["auc"] for name, one in found.items()}
    # 2 above 1: 1; the tie of 0 and 0: a half; one class alone: none
    known = {"both_known": 1.0, "user_unseen": 0.5, "item_unseen": None, "both_unseen": None}
    assert watch == known
    rating = {name: one["tasks"]["rating"]["mse"] for name, one in found.items()}
    # (3 - 5)^2, (3 - 2)^2, (4 - 4)^2, (1 - 3)^2, of the labelled row of each
    assert rating == {"both_known": 4, "user_unseen": 1, "item_unseen": 0, "both_unseen": 4}


def test_segments_of_numbers_are_in_their_order_and_others_as_they_come(prepared: Path) -> None:
    """Rows of "10", "2", 1.5, an unknown and a missing category; names of a device."""
    schema = Schema.load(prepared)
    context = [("hour", ["1.5", "10", "2"]), ("device", ["tv", "phone"])]
    segments = Segments(columns([0], [0]), schema, context)
    context_BC = torch.tensor([[1, 1], [2, 1], [0, 0], [3, 0], [torch.nan, 0]])
    ids = torch.zeros(5, dtype=torch.long)
    segments.update(Request(ids, ids, context=context_BC), (torch.zeros(5, 2), torch.ones(5, 2)))
    hours = [f"hour={value}" for value in ("1.5", "2", "10", "(unknown)", "(missing)")]
    found = {name: one["rows"] for name, one in segments.result().items()}
    assert [*found] == ["both_known", *hours, "device=tv", "device=phone"]
    assert [*found.values()] == [5, 1, 1, 1, 1, 1, 3, 2]


def test_evaluate_prints_segments_of_unknown_users_and_items(
    command: Command, tmp_path: Path
) -> None:
    """210 rows by time, of which the last tenth is for test: none of users in training, and the
    last one's items 0 to 9 were there before, 10 to 19 were not."""
    rows = [(user, item, (user * 7 + item) % 2) for user in range(19) for item in range(10)]
    rows += [(20, item, item % 2) for item in range(20)]
    lines = [f"{user},{item},{label},{at}" for at, (user, item, label) in enumerate(rows, 1)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["user,item,watched,time", *lines]))
    names = ("--user", "user", "--item", "item", "--task", "watch:binary=watched")
    names += ("--timestamp", "time", "--protocol", "time")
    data = tmp_path / "data"
    assert command("prepare", "table", "--input", log, *names, "--out", data).exit_code == 0
    trainer = {"max_epochs": 1, "batch_size": 64}
    fit(parse_config({"model": TINY_MODEL, "trainer": trainer}), data, tmp_path / "run")
    done = command("evaluate", tmp_path / "run", "--json")
    segments = json.loads(done.out)["segments"]
    whole = json.loads(done.out)["rows"]
    assert sum(one["rows"] for one in segments.values()) == whole
    assert set(segments) == {"user_unseen", "both_unseen"}
    assert f"user unseen ({segments['user_unseen']['rows']} rows): watch AUC" in (
        command("evaluate", tmp_path / "run").out
    )
