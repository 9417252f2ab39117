"""The time of a request, with events: every way to a score reads the same of both."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.config.build import build_model
from recsys_moe.config.settings import parse_config
from recsys_moe.data.rows import Columns
from recsys_moe.inference.events.live import MOST_ROWS
from recsys_moe.inference.files.events import observe_file
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import ColdItem, ColdUser, Event, Predictor
from recsys_moe.model import two_tower
from recsys_moe.model.old_names import with_later_parts
from recsys_moe.model.request import Moment
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from tests.train.test_time_features import LATER, config


@pytest.fixture(scope="module")
def timely(timed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reads the time and the events before a row. Read only."""
    out = tmp_path_factory.mktemp("timely") / "run"
    fit(config(), timed, out)
    return out


def test_every_way_to_a_score_reads_the_time_since_the_last_event(timely: Path) -> None:
    """From kept states, from whole windows, with events of the request, after observed ones; and
    each of them by the layer for it, without which all change."""
    late = [{"item": f"i{n}", "time": LATER - 600 + 60 * n} for n in range(3)]
    predictor, informed = Predictor.load(timely), Predictor.load(timely)
    informed.observe([Event(user="u1", **one) for one in late])

    def found(rows: int = 1, at: int = LATER, **asked: Any) -> float:
        score = predictor.score(["u1"] * rows, ["i1"] * rows, context={"time": at}, **asked)
        return float(score.tasks["watch"][0])

    ways = [found, partial(found, MOST_ROWS + 1), partial(found, events=late)]
    before = [way() for way in ways]
    assert before[0] == pytest.approx(before[1], rel=1e-5)
    observed = informed.score(["u1"], ["i1"], context={"time": LATER}).tasks["watch"]
    assert before[2] == pytest.approx(float(observed[0]), rel=1e-5)
    model = predictor.artifact.model
    assert model.encoders is not None
    with torch.no_grad():
        model.encoders.sequence.since_last.narrow_HD.zero_()
    for way, score in zip(ways, before, strict=True):
        assert way() != pytest.approx(score, rel=1e-4)


def test_a_served_score_is_that_of_the_model_on_the_row(timely: Path, timed: Path) -> None:
    """For test rows of users without a test event before: of others the folder knows less. Without
    the trend of items, which an evaluation follows further than a folder."""
    predictor, rows = Predictor.load(timely), RecDataModule(timed, config()).rows("test")
    assert isinstance(rows, Columns)
    model = predictor.artifact.model
    model.trend = None
    known, resolved = predictor.artifact.events, rows.user.long()
    moment = rows.moment()
    assert moment is not None and rows.time is not None
    last_N = known["time"][(known["first"][resolved + 1] - 1).clamp(min=0)]
    same_N = (moment.last == last_N) & (rows.user < len(predictor.users.ids))
    part = rows.part(same_N & (rows.item < len(predictor.items.ids)))
    assert len(part) >= 10
    with torch.inference_mode():
        wanted = model(part.request).logits_BT[:, 0].sigmoid()
    users = predictor.users.texts(part.user.long())
    items = [predictor.items.ids.to_pylist()[one] for one in part.item.tolist()]
    assert part.time is not None
    times = [{"time": one} for one in part.time.tolist()]
    found = predictor.score(users, items, context=times).tasks["watch"]
    assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-4)


def score_after(events: list[dict[str, Any]], place: str, run: Path, file: Path) -> float:
    """Of a new user at LATER + 8, with events from one of PLACES."""
    predictor, user, asked = Predictor.load(run), "new", {}
    whose = [{"user": user, **one} for one in events]
    if place == "request":
        asked["events"] = events
    elif place == "cold user":
        user = ColdUser(events=events)
    elif place == "observed":
        assert predictor.observe(whose).stored == len(events)
    else:
        file.write_text("".join(f"{json.dumps(one)}\n" for one in whose))
        observe_file(predictor, file)
    found = predictor.score([user], ["i1"], context={"time": LATER + 8}, **asked)
    return float(found.tasks["watch"][0])


PLACES = "request", "cold user", "file", "observed"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("run", ["timely", "timed_run"])
def test_an_event_at_the_time_of_a_request_is_not_read_when_no_later_one_is_known(
    run: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The newest of all, and the user's own; by a model that reads times, and by one that does
    not."""
    *before, newest = ({"item": f"i{n}", "time": LATER + n} for n in range(5, 9))
    folder = request.getfixturevalue(run)
    score = partial(score_after, place=place, run=folder, file=tmp_path / "events.jsonl")
    assert score([*before, newest]) == pytest.approx(score(before), rel=1e-6)
    read = score([*before, {**newest, "time": LATER + 7.5}])
    assert read != pytest.approx(score(before), rel=1e-4)


def test_rows_of_a_file_read_what_is_before_their_time_without_time_features(
    timed_run: Path, tmp_path: Path
) -> None:
    """One event before the first time, one at it, of a user who is new."""
    events = [
        Event(user="new", item="i1", time=LATER),
        Event(user="new", item="i2", time=LATER + 9),
    ]
    pairs, scores = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    pairs.write_text(f"user,item,time\nnew,i3,{LATER + 9}\nnew,i3,{LATER + 10}\nnew,i3,\n")
    predictor, informed = Predictor.load(timed_run), Predictor.load(timed_run)
    predictor.observe(events[:1])
    informed.observe(events)
    predict_file(informed, pairs, scores)
    with scores.open(newline="") as stream:
        found = [float(one["watch"]) for one in csv.DictReader(stream)]
    first, both = (float(p.score(["new"], ["i3"]).tasks["watch"]) for p in (predictor, informed))
    assert found == pytest.approx([first, both, both], rel=1e-5)
    assert first != pytest.approx(both, rel=1e-4)


@pytest.mark.parametrize("place", PLACES[:3])
def test_later_events_of_a_request_make_no_room_for_themselves(
    place: str, timely: Path, tmp_path: Path
) -> None:
    """Eight events before the time are all that the model reads, whatever follows in any order. (To
    rounding: without later ones, states that are kept of the user may be read.)"""
    before = [{"item": f"i{n}", "time": LATER + n} for n in range(8)]
    late = [{"item": f"i{n + 8}", "time": LATER + 8 + n} for n in range(8)]

    score = partial(score_after, place=place, run=timely, file=tmp_path / "events.jsonl")
    wanted = pytest.approx(score(before), rel=1e-6)
    assert score(before[1:]) != wanted
    for events in (before + late, late + before, late[::-1] + before):
        assert score(events) == wanted


def test_events_of_a_request_are_the_last_by_time_not_by_place(timely: Path) -> None:
    events = [{"item": f"i{n}", "time": LATER + n} for n in range(16)]
    predictor = Predictor.load(timely)
    found = [
        predictor.score(["new"], ["i1"], events=[*own]).tasks["watch"].tolist()
        for own in (events, events[8:], events[::-1])
    ]
    assert found[0] == found[1] == found[2]


def test_weights_from_before_the_layer_score_as_they_did(timely: Path) -> None:
    """Without its tensors the model is the one whose layer adds nothing."""
    model, other = (Predictor.load(timely).artifact.model for _ in range(2))
    state = {n: one for n, one in model.state_dict().items() if ".since_last." not in n}
    assert len(state) < len(model.state_dict())
    fresh = build_model(config(), Schema.load(timely / "model"), finished=True)
    model.load_state_dict(with_later_parts(state, fresh.state_dict()))
    assert model.encoders is not None and other.encoders is not None
    with torch.no_grad():
        other.encoders.sequence.since_last.narrow_HD.zero_()
    said_BD, at = torch.randn(3, 8), torch.full((3,), 50.0).double()
    when = Moment(at, at - 9, at.float(), at.float(), at.float())
    layers = (one.encoders.sequence.since_last for one in (model, other))
    assert all(torch.equal(layer(said_BD, when), said_BD) for layer in layers)


def test_a_new_item_has_the_age_and_popularity_of_no_other(timely: Path) -> None:
    predictor = Predictor.load(timely)
    request, _ = predictor._pairs(["u1"] * 3, [ColdItem()] * 2 + ["i2"], {"time": LATER})
    assert request.moment is not None
    for values_B in (request.moment.age, request.moment.popularity):
        assert values_B.isnan().tolist() == [True, True, False]
    scores = predictor.score(["u1"] * 3, [ColdItem()] * 3, context={"time": LATER}).tasks["watch"]
    assert len({float(one) for one in scores}) == 1


def test_two_towers_rank_the_same_however_many_pairs_are_computed_at_once(
    timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "two_tower", "embedding_dim": 8, "time_features": "all"}
    settings = {"model": model, "trainer": {"max_epochs": 1}}
    fit(parse_config(settings), timed, tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    assert predictor.artifact.model.trend is not None
    users, lists = [f"u{n}" for n in range(5)], []
    for pairs in (two_tower.ROWS_PER_CHUNK, 1):  # all users at once, one by one
        monkeypatch.setattr(two_tower, "ROWS_PER_CHUNK", pairs)
        found = predictor.recommend(users, 4, context={"time": LATER})
        lists.append([one.scores["watch"] for ranked in found for one in ranked])
    assert lists[0] == pytest.approx(lists[1], rel=1e-5)
    of_pairs = predictor.score(
        [user for user, ranked in zip(users, found, strict=True) for _ in ranked],
        [one.item for ranked in found for one in ranked],
        context={"time": LATER},
    )
    assert lists[0] == pytest.approx(of_pairs.tasks["watch"].tolist(), rel=1e-4)
    assert predictor.recommend(users, 4, candidates=["nobody's"]) == [[]] * 5
