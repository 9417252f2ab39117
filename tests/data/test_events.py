"""What lies before a row, and the windows that encoders read."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.data.events import EventLog, TimedRows, window_order

USERS = 4


@st.composite
def logs(draw: st.DrawFn) -> tuple[TimedRows, EventLog]:
    """Timelines of up to 9 events with equal times among them, in any order of the rows."""
    rows = []
    for user in range(USERS):
        times = sorted(draw(st.lists(st.integers(5, 12), max_size=9)))
        rows += [(user, draw(st.integers(0, 6)), 0.5, t, n) for n, t in enumerate(times)]
    rows = draw(st.permutations(rows))
    columns = zip(*rows, strict=True) if rows else [[] for _ in range(5)]
    made = TimedRows(*(torch.tensor(list(column)) for column in columns))
    made = made._replace(value=made.value.float(), item=made.item.int())
    return made, EventLog(made, USERS)


def before(rows: TimedRows, user: int, least: int, column: str) -> list[int]:
    """Items of a user's events whose `column` is less than `least`, in order: the naive twin."""
    places = getattr(rows, column)
    own = [n for n in range(len(rows.user)) if rows.user[n] == user and places[n] < least]
    return [int(rows.item[n]) for n in sorted(own, key=lambda n: int(rows.event[n]))]


@given(logs(), st.integers(0, USERS), st.integers(0, 10), st.integers(3, 14), st.integers(1, 5))
def test_a_row_sees_the_last_events_strictly_before_it(
    made: tuple[TimedRows, EventLog], user: int, event: int, time: int, length: int
) -> None:
    rows, log = made
    user_B = torch.tensor([user])
    for span_B2, wanted in (
        (log.span(user_B, torch.tensor([event])), before(rows, user, event, "event")),
        (log.span_before(user_B, torch.tensor([time])), before(rows, user, time, "time")),
    ):
        events = log.windows(span_B2, length)
        place = int(events.place[0])
        assert events.item[events.window[0], :place].tolist() == wanted[-length:]


@given(logs(), st.data(), st.integers(1, 5))
def test_rows_share_windows_in_training_and_see_at_most_their_own_past(
    made: tuple[TimedRows, EventLog], data: st.DataObject, length: int
) -> None:
    rows, log = made
    pairs = data.draw(st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(0, 9)), min_size=1))
    user_B, event_B = (torch.tensor(column) for column in zip(*pairs, strict=True))
    events = log.windows(log.span(user_B, event_B), length, shared=True)
    assert events.item.shape[1] <= length
    for row, (user, event) in enumerate(pairs):
        wanted, place = before(rows, user, event, "event"), int(events.place[row])
        assert (place > 0) == bool(wanted)
        seen = events.item[events.window[row], :place].tolist()
        assert seen == wanted[len(wanted) - place :]


@given(logs(), st.integers(1, 5), st.data())
def test_rows_of_windows_in_steps_see_all_but_less_than_a_step_of_a_window(
    made: tuple[TimedRows, EventLog], length: int, data: st.DataObject
) -> None:
    rows, log = made
    step = data.draw(st.integers(1, length))
    user_B, event_B = torch.arange(USERS).repeat_interleave(10), torch.arange(10).repeat(USERS)
    events = log.windows(log.span(user_B, event_B), length, step=step)
    begins = set()
    for row, (user, event) in enumerate(zip(user_B.tolist(), event_B.tolist(), strict=True)):
        wanted, place = before(rows, user, event, "event"), int(events.place[row])
        assert min(len(wanted), length - step + 1) <= place <= length
        assert (len(wanted) - place) % step == 0
        seen = events.item[events.window[row], :place].tolist()
        assert seen == wanted[len(wanted) - place :]
        begins.add((user, len(wanted) - place))
    assert len(events.item) <= len(begins)


def test_shared_windows_are_as_few_as_the_events_of_the_rows_fill() -> None:
    # 10 events of one user, a row after each: 3 windows of at most 4, ending at 10, 6 and 2.
    rows = TimedRows(
        torch.zeros(10).long(),
        torch.arange(10).int(),
        torch.zeros(10),
        torch.arange(10),
        torch.arange(10),
    )
    log = EventLog(rows, 1)
    events = log.windows(log.span(torch.zeros(11), torch.arange(11)), 4, shared=True)
    whole = sorted(row[: int(n)] for row, n in zip(events.item.tolist(), [2, 4, 4], strict=True))
    assert whole == [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]


@given(logs(), st.integers(0, 14))
def test_what_happens_at_or_after_a_time_changes_nothing_before(
    made: tuple[TimedRows, EventLog], time: int
) -> None:
    """Deleted or replaced: every row at `time` reads the same windows."""
    rows, log = made
    early_N = rows.time < time
    users = torch.arange(USERS + 1)
    replaced = rows._replace(item=torch.where(early_N, rows.item, 5 - rows.item))
    changed = [TimedRows(*(column[early_N] for column in rows)), replaced]
    spans = [one.span_before(users, torch.full((USERS + 1,), time)) for one in [log]]
    found = log.windows(spans[0], 3)
    for other in changed:
        twin = EventLog(other, USERS)
        again = twin.windows(twin.span_before(users, torch.full((USERS + 1,), time)), 3)
        for user in range(USERS + 1):
            place = int(found.place[user])
            assert int(again.place[user]) == place
            for one, two in zip(found[:3], again[:3], strict=True):
                both = one[found.window[user], :place], two[again.window[user], :place]
                assert torch.equal(*both)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1), st.integers(1, 6))
def test_the_order_of_windows_has_each_row_once(pairs: list[tuple[int, int]], length: int) -> None:
    first_N = torch.tensor([100 * user for user, _ in pairs])
    span_N2 = torch.stack([first_N, first_N + torch.tensor([place for _, place in pairs])], 1)
    order_N = window_order(span_N2, length, torch.Generator().manual_seed(0))
    assert sorted(order_N.tolist()) == list(range(len(pairs)))


def test_stretches_stay_together_and_their_order_is_random() -> None:
    """4 users of 40 rows in stretches of 10: 4 or 5 each, so at most 20 runs, in another order for
    each seed."""
    first_N = torch.arange(4).repeat_interleave(40) * 100
    span_N2 = torch.stack([first_N, first_N + torch.arange(40).repeat(4)], 1)
    orders = []
    for seed in range(3):
        order_N = window_order(span_N2, 10, torch.Generator().manual_seed(seed))
        user_N, place_N = order_N // 40, order_N % 40
        goes_on_N = (user_N.diff() == 0) & (place_N.diff() == 1)
        assert 10 <= 1 + int((~goes_on_N).sum()) <= 20
        orders.append(order_N.tolist())
    assert orders[0] != orders[1] != orders[2] != sorted(orders[2])
