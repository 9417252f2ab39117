"""The store of observed events against the whole log, sorted."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.inference.events.journal import Journal
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.events.store import EventStore, Observed
from recsys_moe.inference.events.timeline import Timeline, Told

NOW = 1_000_000.0


def event(time: float, item: str = "i", user: str = "u", id: str | None = None) -> Event:
    return Event(item, time, user=user, id=id)


def store(length: int = 5, tolerance: float = 1e5, max_users: int = 100) -> EventStore:
    return EventStore(length, tolerance=tolerance, max_users=max_users, clock=lambda: NOW)


def kept(line: Timeline) -> list[tuple[float, str]]:
    return [*zip(line.time, line.item, strict=True)]


def naive(events: Sequence[Event], user: str, length: int) -> list[tuple[float, str]]:
    """The last of the whole log: each event once, by time, equal times as they came."""
    first = {one.key: one for one in reversed(events) if one.user == user}
    own = [one for one in events if one.user == user and first[one.key] is one]
    return [(one.time, str(one.item)) for one in sorted(own, key=lambda one: one.time)][-length:]


EVENTS = st.lists(
    st.builds(
        event,
        st.integers(0, 9).map(float),
        st.sampled_from("abc"),
        st.sampled_from("uvw"),
        st.sampled_from([None, "1", "2", "3"]),
    ),
    max_size=30,
)


@given(EVENTS, st.data())
def test_the_store_has_the_last_of_the_whole_log(events: list[Event], data: st.DataObject) -> None:
    found = store()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=3)))
    for start, end in itertools.pairwise([0, *cuts, len(events)]):
        found.append(events[start:end])
    # A key may come back after its event made room twice over; that is `length` events later.
    if len(events) <= found.length * 2:
        for user in "uvw":
            assert kept(found.of(user)) == naive(events, user, found.length)


@given(EVENTS)
def test_all_events_of_a_file_are_kept_as_one_after_the_other(events: list[Event]) -> None:
    whole, one_by_one = store(length=2), store(length=40)
    whole.keep(events)
    one_by_one.replay(events)
    for user in "uvw":
        found, wanted = whole.of(user), one_by_one.of(user)
        assert kept(found) == kept(wanted) == naive(events, user, 40)
        assert found.keys == wanted.keys and len(found.value) == len(found.time)


@given(st.lists(st.integers(0, 1000), unique=True, max_size=20), st.randoms(use_true_random=False))
def test_within_the_tolerance_the_order_of_arrival_does_not_matter(
    times: list[int], random: object
) -> None:
    events = [event(float(time), f"i{time}") for time in times]
    one, other = store(), store()
    one.append(events)
    random.shuffle(events)  # type: ignore[attr-defined]
    for each in events:
        other.append([each])
    assert kept(one.of("u")) == kept(other.of("u")) == naive(events, "u", 5)


@given(EVENTS)
def test_a_second_delivery_changes_nothing(events: list[Event]) -> None:
    found = store(length=40)
    first = found.append(events)
    before = {user: found.of(user) for user in "uvw"}
    again = found.append(events)
    assert again == Observed(["duplicate"] * len(events))
    assert first.stored + first.duplicates == len(events)
    assert before == {user: found.of(user) for user in "uvw"}


def test_a_second_delivery_of_what_made_room_at_an_equal_time_changes_nothing() -> None:
    found = store(length=2)
    events = [event(1.0, "a"), event(1.0, "b"), event(1.0, "c")]
    found.append(events)
    assert kept(found.of("u")) == [(1.0, "b"), (1.0, "c")]
    assert found.append(events) == Observed(["duplicate"] * 3)
    assert kept(found.of("u")) == [(1.0, "b"), (1.0, "c")]


def test_an_id_is_compared_among_the_events_of_a_user_and_the_first_delivery_counts() -> None:
    found = store()
    found.append([event(1.0, "a", id="1")])
    assert found.append([event(2.0, "b", id="1")]).duplicates == 1
    assert found.append([event(2.0, "b", "v", id="1")]).stored == 1
    assert kept(found.of("u")) == [(1.0, "a")]


def test_an_event_further_out_of_order_than_the_tolerance_is_rejected_alone() -> None:
    found = store(tolerance=10)
    events = [event(100.0, "a"), event(90.0, "b"), event(89.9, "c"), event(101.0, "d")]
    observed = found.append(events)
    assert (observed.stored, [*observed.rejected]) == (3, [2])
    reason = observed.rejected[2]
    assert reason.startswith("time must be at most 10 s before the user's last event")
    assert "got 89.9" in reason
    assert kept(found.of("u")) == [(90.0, "b"), (100.0, "a"), (101.0, "d")]


def test_the_last_event_of_a_user_may_be_known_from_elsewhere() -> None:
    found = store(tolerance=10)
    observed = found.append([event(80.0), event(95.0)], {"u": 100.0})
    assert (observed.stored, [*observed.rejected]) == (1, [0])


def test_an_event_of_the_future_is_rejected_and_blocks_nothing() -> None:
    found = store(tolerance=10)
    [reason] = found.append([event(NOW + 10.1)]).rejected.values()
    assert reason.startswith("time must be at most 10 s after the present")
    assert found.append([event(NOW + 10), event(NOW)]).stored == 2


def test_an_event_of_the_future_is_refused_in_a_file(tmp_path: Path) -> None:
    found, path = store(tolerance=10), tmp_path / "events.jsonl"
    path.write_text(f'{{"user": "u", "item": "i", "time": {NOW + 10}}}\n')
    with closing(Journal(path)) as journal:
        found.replay(journal.replay(found.check))
    assert len(found.of("u").time) == 1
    path.write_text(f'{{"user": "u", "item": "i", "time": {NOW + 11}}}')  # no line break: no tear
    said = r"line 1: time must be at most 10 s after the present, got 1000011; correct or remove"
    with closing(Journal(path)) as journal, pytest.raises(DataError, match=said):
        found.replay(journal.replay(found.check))
    assert path.stat().st_size > 0


def test_what_is_kept_for_popularity_is_at_least_what_is_documented() -> None:
    """100,000: of what is kept, folding leaves the later half."""
    assert EventStore(5).max_events // 2 >= 100_000


def test_the_last_events_are_with_all_of_the_time_of_the_first_of_them() -> None:
    """The last two of four events are at 2 and 3; another one is at 2."""
    found, heard = store(), list[Told]()

    class Hears:
        def add(self, events: Sequence[Told]) -> None:
            heard.extend(events)

    found.append([event(1.0, "a"), event(2.0, "b"), event(2.0, "c"), event(3.0, "d")])
    found.max_events, follower = 2, Hears()
    found.follow(follower)
    assert heard == [("u", "b", 2.0), ("u", "c", 2.0), ("u", "d", 3.0)]


def test_an_event_older_than_those_that_are_kept_is_rejected() -> None:
    found = store(length=2)
    found.append([event(2.0), event(3.0)])
    [said] = found.append([event(1.0)]).rejected.values()
    assert "within the last 2 events of the user, which are kept, got 1; omit" in said


def test_memory_is_bounded_in_events_and_users_and_the_one_who_was_quiet_longest_goes() -> None:
    found = store(length=3, max_users=2)
    for time in range(50):
        found.append([event(float(time), f"i{time}", user) for user in "uv"])
    assert [len(one) for one in found.of("v")[:5]] == [3] * 5
    found.append([event(60.0, user="u"), event(60.0, user="w")])
    assert [len(found.of(user).time) for user in "uvw"] == [3, 0, 1]
    assert len(found) == 2


def test_where_the_sink_fails_nothing_is_stored() -> None:
    class Full:
        def append(self, events: Sequence[Event]) -> None:
            raise RunError("disk full")

    found = store()
    found.append([event(1.0)])
    found.sink = Full()
    with pytest.raises(RunError):
        found.append([event(2.0), event(3.0, user="v")])
    assert kept(found.of("u")) == [(1.0, "i")] and len(found) == 1
    found.sink = None
    assert found.append([event(2.0)]).stored == 1


def test_many_threads_lose_nothing_and_readers_see_whole_timelines() -> None:
    found, torn = store(length=1000), []
    done = threading.Event()

    def write(number: int) -> None:
        for time in range(100):
            found.append([event(float(time), f"{number}")])

    def read() -> None:
        while not done.is_set():
            line = found.of("u")
            if len({len(one) for one in line[:4]}) > 1 or [*line.time] != sorted(line.time):
                torn.append(line)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for one in [reader, *writers]:
        one.start()
    for one in writers:
        one.join()
    done.set()
    reader.join()
    assert not torn and len(found.of("u").time) == 400


def test_values_and_missing_ones_are_kept() -> None:
    found = store()
    found.append([Event("a", 1.0, 4.5, user="u"), Event("b", 2.0, user="u")])
    value = [*found.of("u").value]
    assert value[0] == 4.5 and math.isnan(value[1])


@pytest.mark.parametrize("wrong", [{"max_users": 0}, {"tolerance": -1.0}, {"tolerance": math.nan}])
def test_bounds_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        EventStore(5, **wrong)  # type: ignore[arg-type]
