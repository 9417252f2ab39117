"""Observed events and those of a request move age and popularity of items as the whole log does."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.artifact.events import last_events
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.data.events import EventLog
from recsys_moe.data.histories import read_log
from recsys_moe.data.item_past import ItemPast
from recsys_moe.inference.events.journal import Journal
from recsys_moe.inference.events.store import EventStore
from recsys_moe.inference.files.events import observe_file
from recsys_moe.inference.predictor import Event, Predictor
from recsys_moe.model.request import Moment
from recsys_moe.train.fit import fit
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL
from tests.serve.conftest import Caller
from tests.timed import prepared

HALF_LIFE = 0.005
"""Days: 7 minutes, of a log of 25."""


def trained(data: Path, out: Path) -> Path:
    model = {**TINY_MODEL, **SEQUENCE_MODEL, "time_features": "all"}
    config = {"model": {**model, "popularity_half_life": HALF_LIFE}, "optim": {"lr": 0.02}}
    fit(parse_config({**config, "trainer": {"max_epochs": 1, "batch_size": 128}}), data, out)
    return out


@pytest.fixture(scope="module")
def timely(timed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reads age and popularity, trained on all but the last events. Read only."""
    return trained(timed, tmp_path_factory.mktemp("timely") / "run")


@pytest.fixture
def predictor(timely: Path) -> Predictor:
    """In which age and popularity weigh much; it keeps all events of the tests."""
    return heavy(Predictor(load_artifact(timely), EventStore(100)))


def heavy(predictor: Predictor) -> Predictor:
    trend = predictor.artifact.model.trend
    assert trend is not None
    with torch.no_grad():
        trend.piece_PT.copy_(
            torch.linspace(-0.3, 0.3, trend.piece_PT.numel()).view_as(trend.piece_PT)
        )
    return predictor


def events_of(predictor: Predictor, log: EventLog) -> list[Event]:
    """Of a log in indices, by time."""
    users, items = predictor.users.texts(log.user_P), predictor.items.texts(log.item_P.long())
    rated = predictor.artifact.schema.counts("train", "rating", "mean", "std")
    values = (log.value_P * rated["std"] + rated["mean"]).round().tolist()
    columns = zip(items, log.time_P.double().tolist(), values, users, strict=True)
    return sorted((Event(*one) for one in columns), key=lambda one: one.time)


def later(predictor: Predictor, data: Path) -> list[Event]:
    """What the model folder does not hold."""
    found = events_of(predictor, read_log(data, predictor.artifact.schema, ["test"]))
    assert len(found) > 50
    return found


def moment(predictor: Predictor, seconds: float, user: str = "u1", **asked: Any) -> Moment:
    """Of all items at a time."""
    size = predictor.artifact.schema.item.size
    users = predictor.resolve([user] * size)
    at_B = torch.full((size,), seconds, dtype=torch.float64)
    found: Moment = predictor._past(users, asked.get("events"), at_B)["moment"]
    return found.about(torch.arange(size))


def assert_equals_log(found: Moment, log: EventLog, *, has_popularity: bool = True) -> None:
    items = torch.arange(len(found.time))
    age_N, popularity_N = ItemPast(log, len(items), HALF_LIFE).at(items, found.time)
    torch.testing.assert_close(found.age, age_N, equal_nan=True)
    if has_popularity:
        exact = {"rtol": 1e-6, "atol": 1e-6}
        torch.testing.assert_close(found.popularity, popularity_N, equal_nan=True, **exact)


def times_after(predictor: Predictor, events: Sequence[Event]) -> list[float]:
    """Of events after the folder's log, and long after all."""
    past = predictor.artifact.past
    assert past is not None
    moments = sorted({one.time for one in events if one.time > float(past.end)})
    assert len(moments) > 5
    return [*moments[:: len(moments) // 5], moments[-1] + 1, moments[-1] + 9e7]


def test_after_observed_events_items_are_those_of_the_whole_log_at_any_time(
    predictor: Predictor, timed: Path
) -> None:
    """Strictly before: events at the time of a request do not count."""
    events, whole = later(predictor, timed), read_log(timed, predictor.artifact.schema)
    moments = times_after(predictor, events)
    frozen = moment(predictor, moments[-2])
    for start in range(0, len(events), 40):
        predictor.observe(events[start : start + 40])
    for seconds in moments:
        assert_equals_log(moment(predictor, seconds), whole)
    moved = moment(predictor, moments[-2])
    assert ((moved.popularity - frozen.popularity).abs() > 0.1).sum() > 10


def whole_log(predictor: Predictor, data: Path) -> Predictor:
    """Whose folder holds the events of all splits."""
    artifact, log = predictor.artifact, read_log(data, predictor.artifact.schema)
    past = ItemPast(log, artifact.schema.item.size, HALF_LIFE).known()
    return Predictor(replace(artifact, events=last_events(log, 8), past=past))


def watch(predictor: Predictor, seconds: float, user: str = "u1", **asked: Any) -> Tensor:
    items = predictor.items.ids.to_pylist()
    context = {"time": seconds}
    return predictor.score([user] * len(items), items, context=context, **asked).tasks["watch"]


def test_scores_after_observed_events_are_those_of_the_whole_log(
    predictor: Predictor, timed: Path
) -> None:
    events = later(predictor, timed)
    seconds = events[-1].time + 60
    before, wanted = watch(predictor, seconds), whole_log(predictor, timed)
    predictor.observe(events)
    for user in ("u1", "u2", "new"):
        found = watch(predictor, seconds, user)
        torch.testing.assert_close(found, watch(wanted, seconds, user), rtol=0, atol=1e-6)
    assert (watch(predictor, seconds) - before).abs().max() > 1e-3
    [ranked] = predictor.recommend(["new"], 5, context={"time": seconds})
    [best] = wanted.recommend(["new"], 5, context={"time": seconds})
    assert [one.item for one in ranked] == [one.item for one in best]


def test_events_of_a_request_count_for_its_rows_alone_and_once(
    predictor: Predictor, timed: Path
) -> None:
    events = later(predictor, timed)
    user, other = str(events[0].user), "u2" if events[0].user == "u1" else "u1"
    events = [one for one in events if one.user == user][-6:]
    seconds = events[-1].time + 60
    own = [one._replace(user=None) for one in events]
    asked = {"context": {"time": seconds}}
    apart = predictor.score([user, other], ["i1"] * 2, events=[own, None], **asked).tasks["watch"]
    alone = predictor.score([other], ["i1"], **asked).tasks["watch"]
    torch.testing.assert_close(apart[1:], alone, rtol=0, atol=1e-6)
    inline = watch(predictor, seconds, user, events=own)
    torch.testing.assert_close(apart[0], inline[predictor.items.index(["i1"])[0][0]])
    given = moment(predictor, seconds, user, events=own)
    before = moment(predictor, seconds, user)
    assert ((given.popularity - before.popularity).abs() > 1e-3).all()
    predictor.observe(events)
    torch.testing.assert_close(watch(predictor, seconds, user), inline, rtol=0, atol=1e-6)
    after, again = (moment(predictor, seconds, user, **one) for one in ({}, {"events": own}))
    for found in (given, again):
        torch.testing.assert_close(found.popularity, after.popularity, rtol=1e-6, atol=1e-6)


def test_events_that_the_folder_holds_count_once(predictor: Predictor, timed: Path) -> None:
    """As after a fit on a log with what was observed meanwhile: the first half is of training."""
    schema = predictor.artifact.schema
    log = read_log(timed, schema, ["train", "val"])
    store = EventStore(8, tolerance=1e12)
    informed = Predictor(predictor.artifact, store)
    stored = events_of(predictor, log)
    assert informed.observe(stored + later(predictor, timed)).stored > len(stored) / 2
    seconds = float(read_log(timed, schema).time_P.max()) + 5
    assert_equals_log(moment(informed, seconds), read_log(timed, schema))


def test_events_of_a_request_that_the_folder_holds_count_once(
    predictor: Predictor, timed: Path
) -> None:
    """Those of the user whose event is the last of the folder: they weigh most."""
    log = read_log(timed, predictor.artifact.schema, ["train", "val"])
    stored = events_of(predictor, log)
    user, seconds = str(stored[-1].user), stored[-1].time + 1
    own = [one._replace(user=None) for one in stored if one.user == user]
    assert_equals_log(moment(predictor, seconds, user, events=own), log)
    plain, other = (
        moment(predictor, seconds, user, events=events).popularity
        for events in (None, [own[-1]._replace(item=own[-2].item, time=seconds - 0.5)])
    )
    assert ((other - plain).abs() > 5e-4).all()


def test_no_event_at_the_time_of_a_request_or_later_changes_it(
    predictor: Predictor, timed: Path
) -> None:
    events = later(predictor, timed)
    middle = events[len(events) // 2].time
    early = [one for one in events if one.time < middle]
    late = [one for one in events if one.time >= middle]
    own = [{"item": "i3", "time": middle}, {"item": "i4", "time": middle + 1}]
    predictor.observe(early)
    wanted = watch(predictor, middle, "u5")
    assert torch.equal(watch(predictor, middle, "u5", events=own), wanted)
    predictor.observe(late)
    found = watch(predictor, middle, "u5")
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    other = heavy(Predictor(predictor.artifact))
    other.observe([*early, *(one._replace(item="i7") for one in late)])
    assert torch.equal(watch(other, middle, "u5"), found)
    assert not torch.equal(watch(other, middle + 9e4, "u5"), watch(predictor, middle + 9e4, "u5"))


def test_events_at_the_very_time_of_a_request_do_not_count(
    predictor: Predictor, timed: Path
) -> None:
    """Of its own user and the newest of all: given, given by the window, and observed."""
    seconds = later(predictor, timed)[-1].time + 60
    now = [Event(f"i{n}", seconds) for n in range(9)]  # more than the model reads
    early = Event("i4", seconds - 1)
    wanted = watch(predictor, seconds, "u5")
    of_early = watch(predictor, seconds, "u5", events=[early])
    assert not torch.equal(of_early, wanted)
    assert torch.equal(watch(predictor, seconds, "u5", events=now[:1]), wanted)
    found = watch(predictor, seconds, "u5", events=[early, *now])
    torch.testing.assert_close(found, of_early, rtol=0, atol=1e-6)
    predictor.observe([now[0]._replace(user="u5")])
    torch.testing.assert_close(watch(predictor, seconds, "u5"), wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_events_before_the_end_of_the_log_count_too(tmp_path: Path) -> None:
    """Of `leave-last` the last events of users are among those of others."""
    data = prepared(tmp_path / "data", "leave-last")
    predictor = Predictor.load(trained(data, tmp_path / "run"))
    schema = predictor.artifact.schema
    predictor.observe(later(predictor, data))
    whole = read_log(data, schema)
    assert_equals_log(moment(predictor, float(whole.time_P.max()) + 7), whole)


def test_folders_without_a_total_stay_as_they_are(timely: Path, timed: Path) -> None:
    artifact = load_artifact(timely)
    assert artifact.past is not None and artifact.past.total is not None
    old = heavy(Predictor(replace(artifact, past=artifact.past._replace(total=None))))
    new = heavy(Predictor(artifact))
    events = later(old, timed)
    seconds = events[-1].time + 60
    assert torch.equal(watch(old, seconds, "u9"), watch(new, seconds, "u9"))
    before = moment(old, seconds)
    old.observe(events)
    assert torch.equal(
        moment(old, seconds).popularity.nan_to_num(-1), before.popularity.nan_to_num(-1)
    )


def test_a_store_that_outlives_a_model_tells_the_next_one(
    predictor: Predictor, timed: Path
) -> None:
    events = later(predictor, timed)
    predictor.observe(events)
    after = Predictor(predictor.artifact, predictor.store)
    seconds = events[-1].time + 60
    assert_equals_log(moment(after, seconds), read_log(timed, predictor.artifact.schema))
    for one in (predictor, after):  # each hears of what comes
        assert moment(one, seconds + 99).popularity[3] == moment(after, seconds + 99).popularity[3]
    predictor.observe([Event("i3", seconds, user="u1")])
    both = [moment(one, seconds + 99).popularity[3] for one in (predictor, after)]
    assert both[0] == both[1]


def test_files_of_events_move_items_at_any_time(
    predictor: Predictor, timed: Path, tmp_path: Path
) -> None:
    """Of a service, replayed at its start, and of a command, in any order."""
    events, whole = later(predictor, timed), read_log(timed, predictor.artifact.schema)
    moments = times_after(predictor, events)
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{json.dumps(one._asdict())}\n" for one in events))
    replayed = Predictor(predictor.artifact)
    assert replayed.store is not None
    replayed.store.replay(Journal(file).replay())
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(reversed(lines)))
    command = Predictor(predictor.artifact)
    assert command.store is not None
    command.store.max_events = 5  # of a service: earlier ones are sums
    observe_file(command, file)
    for found in (replayed, command):
        for seconds in moments:
            assert_equals_log(moment(found, seconds), whole)


def test_over_http_events_move_a_list_as_in_python(
    timely: Path, predictor: Predictor, timed: Path
) -> None:
    caller = Caller(timely)
    heavy(caller.models.current.predictor)
    events = later(predictor, timed)
    seconds = events[-1].time + 60
    body = {"users": ["nobody"], "k": 5, "context": {"time": seconds}}
    before = caller.post("/recommend", body).json()["rankings"]
    sent = {"events": [one._asdict() for one in events]}
    for one in sent["events"]:
        del one["id"]
    assert caller.post("/events", sent).json()["stored"] == len(events)
    [ranking] = caller.post("/recommend", body).json()["rankings"]
    predictor.observe(events)
    [wanted] = predictor.recommend(["nobody"], 5, context={"time": seconds})
    assert [one["item"] for one in ranking["items"]] == [one.item for one in wanted]
    assert [ranking] != before
    own = [{"item": "i2", "time": seconds - 1}]
    pairs = {"users": ["nobody"] * 2, "items": ["i2", "i3"], "context": {"time": seconds}}
    reply = caller.post("/predict", {**pairs, "events": own}).json()["scores"]["watch"]
    python = predictor.score(["nobody"] * 2, ["i2", "i3"], context={"time": seconds}, events=own)
    assert reply == pytest.approx(python.tasks["watch"].tolist(), abs=1e-6)


def test_a_request_costs_the_same_after_10_and_after_100_000_events(predictor: Predictor) -> None:
    """Ten times the events, and twice the time is far off."""
    start = 2e9 - 1e6

    def cost(first: int, count: int) -> float:
        for place in range(first, first + count, 1000):
            some = range(place, min(place + 1000, first + count))
            predictor.observe([Event(f"i{n % 40}", 1.7e9 + n, user=f"v{n % 90}") for n in some])
        seconds = []
        for _ in range(15):
            began = time.process_time()
            moment(predictor, start, "u3")
            seconds.append(time.process_time() - began)
        return min(seconds)

    few = cost(0, 10)
    assert cost(10, 100_000) < 3 * few + 1e-3
