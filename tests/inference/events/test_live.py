"""Events at a Predictor: what it learns while it serves equals what the whole log says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from recsys_moe.artifact.events import last_events
from recsys_moe.data.events import EventLog
from recsys_moe.data.histories import read_log
from recsys_moe.errors import DataError
from recsys_moe.inference.predictor import ColdUser, Event, Predictor
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.schema import Schema
from tests.live import live_log

LATER = 1_100_000_000.0


@pytest.fixture
def predictor(sequence_run: Path) -> Predictor:
    return Predictor.load(sequence_run)


@pytest.fixture(scope="module")
def later(live: Path) -> pd.DataFrame:
    """The raw events that the model folder does not hold, by time."""
    log, schema = live_log(), Schema.load(live)
    train = read_log(live, schema, ("train", "val"))
    users, items = (pd.read_parquet(live / f"{one}s.parquet") for one in ("user", "item"))
    rows = zip(train.user_P.tolist(), train.item_P.tolist(), train.time_P.tolist(), strict=True)
    seen = {(users["user"][user], items["item"][item], time) for user, item, time in rows}
    keys = zip(log["user"], log["item"], log["time"], strict=True)
    is_new = [key not in seen for key in keys]
    return log[is_new].sort_values("time", kind="stable")


def events_of(rows: pd.DataFrame) -> list[Event]:
    return [
        Event(row.item, row.time, float(row.rating), user=row.user)
        for row in rows.itertuples(index=False)
    ]


def scores(predictor: Predictor, users: Any, **options: Any) -> torch.Tensor:
    """(U, N): watch of all items."""
    every = predictor.items.ids.to_pylist()
    pairs = [user for user in users for _ in every], every * len(users)
    return predictor.score(*pairs, **options).tasks["watch"].view(len(users), -1)


def whole_log(predictor: Predictor, live: Path) -> Predictor:
    """A predictor whose folder holds the events of all splits."""
    artifact = predictor.artifact
    log = read_log(live, artifact.schema)
    kept = log.item_P <= artifact.schema.item.size
    assert kept.all()
    return Predictor(replace(artifact, events=last_events(log, 8)))


def test_after_each_event_the_list_is_that_of_the_whole_log(
    predictor: Predictor, later: pd.DataFrame, live: Path
) -> None:
    """Known users, whose stored events go on; ratings, unknown items and equal times among them."""
    schema, users = predictor.artifact.schema, predictor.users.ids.to_pylist()
    known = later[later["user"].isin(users)]
    assert len(known) > 30 and known.duplicated(["user", "time"]).any()
    assert predictor.observe(events_of(known)).stored == len(known)
    expected = whole_log(predictor, live)
    found = scores(predictor, users)
    assert (found - scores(expected, users)).abs().max() < 1e-6
    assert (found - scores(Predictor(predictor.artifact), users)).abs().max() > 1e-3
    lists = zip(predictor.recommend(users, 5), expected.recommend(users, 5), strict=True)
    for one, other in lists:
        assert [entry.item for entry in one] == [entry.item for entry in other]
    assert schema.item.size == predictor.artifact.schema.item.size


def test_a_new_user_has_the_list_of_the_events_alone(
    predictor: Predictor, later: pd.DataFrame
) -> None:
    """Observed, in the request, of a ColdUser, and by the model from a log of its own."""
    name = "someone new"
    new = later[later["user"] == later["user"].value_counts().index[0]].assign(user=name)
    events = events_of(new[new["user"] == name])
    assert len(events) >= 3
    bare = [one._replace(user=None) for one in events]
    inline = scores(predictor, [name], events=bare)
    cold = scores(predictor, [ColdUser(events=bare)])
    before = scores(predictor, [name])
    predictor.observe(events)
    observed = scores(predictor, [name])
    assert torch.equal(inline, cold) and (inline - observed).abs().max() < 1e-6
    assert (observed - before).abs().max() > 1e-3
    by_model = _by_model(predictor, events)
    assert (observed - by_model).abs().max() < 1e-6
    ranked = predictor.recommend(events=bare, k=3)[0]
    stored = predictor.recommend([name], 3)[0]
    assert [one.item for one in ranked] == [one.item for one in stored]


def _by_model(predictor: Predictor, events: list[Event]) -> torch.Tensor:
    """Through EventLog and the model's own forward pass."""
    from recsys_moe.data.events import TimedRows
    from recsys_moe.model.request import Request

    schema, items = predictor.artifact.schema, predictor.items
    rated = schema.counts("train", "rating", "mean", "std")
    count = len(events)
    rows = TimedRows(
        torch.zeros(count, dtype=torch.long),
        items.index([one.item for one in events])[0],
        torch.tensor([(float(one.value or 0) - rated["mean"]) / rated["std"] for one in events]),
        torch.tensor([int(one.time) for one in events]),
        torch.arange(count),
    )
    log = EventLog(rows, 1)
    nobody = torch.full((schema.item.size,), schema.user.size)
    spans = log.whole(torch.zeros(schema.item.size, dtype=torch.long))
    windows = log.windows(spans, 8)
    request = Request(nobody, torch.arange(schema.item.size), None, windows)
    with torch.inference_mode():
        return predictor.artifact.model(request).logits_BT[:, 0].sigmoid()


def test_events_of_a_request_join_those_that_are_stored(
    predictor: Predictor, later: pd.DataFrame
) -> None:
    user = later[later["user"].isin(predictor.users.ids.to_pylist())]["user"].iloc[0]
    events = events_of(later[later["user"] == user])
    bare = [one._replace(user=None) for one in events]
    inline = scores(predictor, [user], events=bare)
    predictor.observe(events[:1])
    half = scores(predictor, [user], events=bare)  # the first one twice
    predictor.observe(events)
    whole = scores(predictor, [user])
    for found in (inline, half):
        assert (found - whole).abs().max() < 1e-6
    assert torch.equal(whole, scores(predictor, [user], events=bare))


@pytest.mark.parametrize("key", [{}, {"id": "click"}])
def test_an_event_that_a_request_lists_twice_counts_once_as_an_observed_one(
    key: dict[str, Any], predictor: Predictor
) -> None:
    """The first one stays: of the copies, which rate another way or, with an id, come later."""
    first, second, third = (
        {"item": f"i{n}", "time": LATER + n, "value": 1 + 2 * (n % 3)} for n in range(3)
    )
    first |= key
    copy = {**first, "value": 5, "time": LATER + 9} if key else {**first, "value": 5}
    twice = [first, *[copy] * 3, second, third]
    once = scores(predictor, ["nobody"], events=[first, second, third])
    found = [
        scores(predictor, ["nobody"], events=twice),
        scores(predictor, ["nobody"], events=[twice] * len(once[0])),
        scores(predictor, [ColdUser(events=twice)]),
        scores(predictor, [ColdUser(events=twice[:2])], events=twice[2:]),
    ]
    assert all(torch.equal(one, once) for one in found)
    assert predictor.observe([{"user": "nobody", **one} for one in twice]).stored == 3
    assert (scores(predictor, ["nobody"]) - once).abs().max() < 1e-6


def test_a_list_of_events_for_each_row_is_that_of_the_row_alone(predictor: Predictor) -> None:
    one, other = [{"item": "i1", "time": LATER}], [{"item": "i2", "time": LATER, "value": 5}]
    users, items = ["u0", "u0", "nobody", "u0"], ["i3"] * 4
    found = predictor.score(users, items, events=[one, other, other, None]).tasks["watch"]
    each = [
        predictor.score([user], ["i3"], events=events).tasks["watch"][0]
        for user, events in zip(users, [one, other, other, None], strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(each), atol=1e-6, rtol=0)
    assert len({round(value, 6) for value in found.tolist()}) == 4


def test_a_stored_event_that_is_delivered_again_changes_nothing(
    predictor: Predictor, live: Path
) -> None:
    """As after a fit on a log with what was observed meanwhile."""
    stored = predictor.artifact.events
    user = int(stored["first"].diff().argmax())
    part = slice(*stored["first"][user : user + 2].tolist())
    items = predictor.items.texts(stored["item"][part].long())
    name = predictor.users.texts(torch.tensor([user]))[0]
    before = scores(predictor, [name])
    again = [
        Event(item, float(time), user=name)
        for item, time in zip(items, stored["time"][part].tolist(), strict=True)
    ]
    predictor.store.tolerance = 1e12  # type: ignore[union-attr]
    assert predictor.observe(again).stored == len(again)
    assert torch.equal(before, scores(predictor, [name]))


def test_an_event_long_before_the_last_one_of_training_is_rejected(predictor: Predictor) -> None:
    [user] = predictor.users.texts(predictor.artifact.events["first"].diff().argmax()[None])
    observed = predictor.observe([{"user": user, "item": "i1", "time": 5.0}])
    assert "before the user's last event" in observed.rejected[0]


def test_what_was_observed_can_be_left_out_of_lists(predictor: Predictor) -> None:
    [before] = predictor.recommend(["u0"], 3, exclude_seen=True)
    first = before[0].item
    predictor.observe([{"user": "u0", "item": first, "time": LATER}])
    every = len(predictor.items.ids)
    [after] = predictor.recommend(["u0"], every, exclude_seen=True)
    assert first not in [one.item for one in after]
    [all_of_them] = predictor.recommend(["u0"], every)
    assert first in [one.item for one in all_of_them]
    inline = [{"item": before[1].item, "time": LATER}]
    [more] = predictor.recommend(["u0"], every, exclude_seen=True, events=inline)
    assert before[1].item not in [one.item for one in more]


def test_unknown_items_are_events_too(predictor: Predictor) -> None:
    bare = scores(predictor, ["u0"])
    unknown = scores(predictor, ["u0"], events=[{"item": "?", "time": LATER}])
    assert (bare - unknown).abs().max() > 1e-4
    two = [{"item": "?", "time": LATER}, {"item": "??", "time": LATER}]
    assert not torch.equal(unknown, scores(predictor, ["u0"], events=two))


def test_explanations_follow_the_events(predictor: Predictor) -> None:
    before = predictor.explain(["u0"], ["i1"])
    predictor.observe([{"user": "u0", "item": "i2", "time": LATER, "value": 1}])
    assert predictor.explain(["u0"], ["i1"]) != before


@pytest.fixture
def work(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of everything that one request looks up or encodes."""
    sizes: list[int] = []
    index, encode = Vocabulary.index, type(predictor.artifact.model).encode_items

    def counted(self: Vocabulary, raw: Any) -> Any:
        sizes.append(len(raw))
        return index(self, raw)

    def encoded(self: Any, request: Any) -> Any:
        sizes.append(len(request.item))
        return encode(self, request)

    monkeypatch.setattr(Vocabulary, "index", counted)
    monkeypatch.setattr(type(predictor.artifact.model), "encode_items", encoded)
    yield sizes


def test_a_request_costs_the_same_after_10_and_after_100_000_events(
    predictor: Predictor, work: list[int]
) -> None:
    def cost(start: int, count: int) -> list[int]:
        events = [Event(f"i{n % 30}", LATER + n, user="u0") for n in range(start, start + count)]
        for first in range(0, count, 1000):
            predictor.observe(events[first : first + 1000])
        work.clear()
        predictor.observe([Event("i1", LATER + start + count, user="u0")])
        predictor.recommend(["u0"], 5)
        line = predictor.store.of("u0")  # type: ignore[union-attr]
        return [*work, *map(len, line[:5])]

    cost(0, 2)  # which builds tables of ids
    few = cost(10, 10)
    assert max(few) <= 40  # at most 8 events, 30 items
    cost(100, 20)  # now there are more than are kept
    assert cost(1000, 100_000)[:-5] == few[:-5]


def test_ratings_are_checked_by_the_task(predictor: Predictor) -> None:
    given = [{"user": "u0", "item": "i1", "time": LATER, "value": 9}]
    assert predictor.observe(given).stored == 1  # without a range
    schema = predictor.artifact.schema
    tasks = tuple(replace(one, low=1.0, high=5.0) for one in schema.tasks)
    ranged = replace(predictor.artifact, schema=replace(schema, tasks=tasks))
    predictor = Predictor(ranged)
    with pytest.raises(DataError, match=r"events\[0\]: value is the rating and must be in 1\.\.5"):
        predictor.observe(given)
    assert len(predictor.store or ()) == 0


def test_a_list_of_another_length_is_refused(predictor: Predictor) -> None:
    with pytest.raises(DataError, match="events must be of all rows or a list for each of 1"):
        predictor.score(["u0"], ["i1"], events=[[], []])


def test_a_model_that_reads_no_events_refuses_them_with_the_remedy(run: Path) -> None:
    plain = Predictor.load(run)
    event = {"item": 2, "time": LATER}
    calls: list[Any] = [
        lambda: plain.observe([event | {"user": 1}]),
        lambda: plain.score([1], [2], events=[event]),
        lambda: plain.recommend([1], events=[event]),
        lambda: plain.recommend(events=[event]),
        lambda: plain.recommend([ColdUser(events=[event])]),
    ]
    for call in calls:
        with pytest.raises(DataError, match=r"model\.sequence=none\); omit .* or train with"):
            call()
    assert plain.store is None


def test_a_rating_beyond_all_of_training_counts_as_the_nearest_one(predictor: Predictor) -> None:
    """Ratings of the log are 1 to 5."""
    found = []
    for value in (5, 44):
        event = {"item": "i3", "time": 1_002_000_000, "value": value}
        found.append(scores(predictor, [ColdUser(events=[event])]))
    assert torch.equal(*found)
