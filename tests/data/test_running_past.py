"""What a model folder knows of items, moved by events: equal to the past of the whole log."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.data.events import EventLog, TimedRows
from recsys_moe.data.item_past import DAY, ItemPast
from recsys_moe.data.running_past import RunningPast, WithGiven

ITEMS, HALF_LIFE = 4, 0.01
END = 3_000
Events = list[tuple[int, int]]


def past(events: Events, half_life: float = HALF_LIFE) -> ItemPast:
    """Of (item, second) pairs, each of a user of its own."""
    item, time = (torch.tensor([one[n] for one in events], dtype=torch.long) for n in (0, 1))
    rows = TimedRows(torch.arange(len(events)), item, torch.ones(len(events)), time, item * 0)
    return ItemPast(EventLog(rows, len(events)), ITEMS, half_life)


def running(events: Events, half_life: float = HALF_LIFE) -> RunningPast:
    """That goes on from a log."""
    return RunningPast(past(events, half_life).known(), ITEMS, half_life)


def rows(times: list[float]) -> tuple[Tensor, Tensor]:
    """Each item, and an unknown one, at each time."""
    item_N = torch.arange(ITEMS + 1)
    item_B, time_B = item_N.repeat(len(times)), torch.tensor(times).double()
    return item_B, time_B.repeat_interleave(len(item_N))


def assert_equal(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)


OLD = st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(0, END)), min_size=1, max_size=9)
NEW = st.lists(st.tuples(st.integers(0, ITEMS), st.integers(0, 3 * END)), max_size=9)
TIMES = st.lists(st.integers(END + 1, 4 * END).map(float), min_size=1, max_size=4)


@given(OLD, NEW, TIMES, st.integers(2, 4))
def test_popularity_and_age_after_the_folders_log_are_those_of_the_whole_log(
    old: Events, new: Events, times: list[float], parts: int
) -> None:
    """In any order of arrival, late events among them."""
    found = running(old)
    for part in range(parts):
        found.add(new[part::parts])
    asked = rows(times)
    assert_equal(found.at(*asked), past(old + new).at(*asked))


@given(OLD, NEW, NEW, NEW, TIMES)
def test_events_of_a_request_count_as_those_of_the_log_for_its_rows_alone(
    old: Events, new: Events, first: Events, second: Events, times: list[float]
) -> None:
    found = running(old)
    found.add(new)
    item_B, time_B = rows(times)
    given_B = torch.arange(len(item_B)) % 3
    standing = WithGiven.of(found, [first, [], second])
    result = standing.at(item_B, time_B, given_B)
    for place, own in enumerate((first, [], second)):
        mine = given_B == place
        wanted = past(old + new + own).at(item_B[mine], time_B[mine])
        assert_equal((result[0][mine], result[1][mine]), wanted)
    assert_equal(standing.at(item_B, time_B), found.at(item_B, time_B))


@given(OLD, NEW, NEW, st.integers(END + 1, 3 * END))
def test_no_event_at_a_time_or_later_changes_a_bit_of_it(
    old: Events, new: Events, late: Events, time: int
) -> None:
    early = [one for one in new if one[1] < time]
    found, other = running(old), running(old)
    found.add(early)
    other.add([*[(item, time + second) for item, second in late], *early])
    given_B = torch.zeros(ITEMS + 1).long()
    own = WithGiven.of(other, [[(1, time), (2, 2 * time)]])
    item_B, time_B = rows([float(time)])
    wanted = running(old).at(item_B, time_B) if not early else found.at(item_B, time_B)
    for results in (other.at(item_B, time_B), own.at(item_B, time_B, given_B)):
        assert_equal(results, wanted)
        assert torch.equal(results[0].isnan(), wanted[0].isnan())


@given(OLD, NEW, NEW, st.integers(1, 5))
def test_what_is_folded_counts_as_before_and_memory_is_bounded(
    old: Events, new: Events, more: Events, most: int
) -> None:
    found = running(old)
    for event in new + more:
        found.add([event], most)
    assert sum(len(one.time) for one in found._lines.values()) <= 3 * most
    assert len(found._every.time) <= most + 1
    asked = rows([4.0 * END])
    assert_equal(found.at(*asked), past(old + new + more).at(*asked))
    age_B, popularity_B = found.at(*rows([found._end]))
    assert popularity_B.isnan().all()


def test_folding_leaves_the_later_half_one_by_one() -> None:
    """Six are kept: the end of the log and five events."""
    whole = [(n % ITEMS, END + 10 * (n + 1)) for n in range(5)]
    found = running([(0, END)])
    found.add(whole, 6)
    assert found._end == END
    found.add([(0, END + 60)], 6)
    assert found._end == END + 30  # of seven, the middle one
    wanted = past([(0, END), *whole, (0, END + 60)])
    asked = rows([END + 35.0, END + 45.0, END + 60.0, END + 61.0])
    assert found.at(*asked)[1][0] > 0
    assert_equal(found.at(*asked), wanted.at(*asked))


def test_at_the_second_of_its_first_event_an_item_has_no_age() -> None:
    found = running([(0, END)])
    found.add([(1, END + 10), (2, END + 5)])
    age_B, popularity_B = found.at(*rows([END + 10.0]))
    assert age_B[1].isnan() and popularity_B[1].isnan()
    assert age_B[2] == 5 and popularity_B[2] > 0


def test_a_count_by_hand() -> None:
    """At END one event of item 0; a half-life later one of item 1, and the request another later:
    1/4 and 1/2 of 3/4, times four items."""
    step = int(HALF_LIFE * DAY)
    found = running([(0, END)])
    assert found.at(torch.tensor([0]), torch.tensor([END + 1.0]).double())[1] == ITEMS
    found.add([(1, END + step)])
    age_B, popularity_B = found.at(*rows([END + 2.0 * step]))
    assert popularity_B[:2].tolist() == pytest.approx([4 / 3, 8 / 3])
    assert age_B[:2].tolist() == [2 * step, step] and age_B[2:].isnan().all()
    hidden_B = found.at(torch.tensor([~1]), torch.tensor([END + 2.0 * step]).double())
    assert float(hidden_B[1]) == pytest.approx(8 / 3)


def test_nothing_overflows_decades_of_half_lives_later() -> None:
    found, later = running([(0, END), (2, END)], 1 / 24), 30 * 366 * DAY
    found.add([(1, later), (1, later + 1)])
    own = WithGiven.of(found, [[(2, 2 * int(later))]])
    after = rows([3 * later])
    assert found.at(*after)[1][:4].tolist()[:3] == [0.0, ITEMS, 0.0]
    result = own.at(*after, torch.zeros(ITEMS + 1).long())[1]
    assert result[:3].tolist() == [0.0, 0.0, ITEMS]
    between = found.at(*rows([later]))[1]
    assert between[:3].tolist()[0] == 2.0 and between[1].isnan()  # two items, half of all each


def test_without_a_time_and_a_log_nothing_is_known() -> None:
    found = running([])
    found.add([(1, END)])
    assert all(one.isnan().all() for one in found.at(*rows([math.nan])))
    assert float(found.at(*rows([END + 1.0]))[1][1]) == ITEMS


def test_items_behind_those_of_the_folder_have_places_of_their_own() -> None:
    """Catalogues grow; the mean item stays that of the folder."""
    found = RunningPast(past([(0, END)]).known(), ITEMS + 2, HALF_LIFE)
    found.add([(ITEMS + 1, END), (ITEMS + 2, END)])
    age_B, popularity_B = found.at(
        torch.tensor([0, ITEMS + 1, ITEMS + 2]), torch.full((3,), END + 5.0).double()
    )
    assert popularity_B[:2].tolist() == pytest.approx([2.0, 2.0]) and popularity_B[2].isnan()
    assert age_B[:2].tolist() == [5, 5]


@given(OLD, NEW, NEW)
def test_a_row_without_a_time_is_about_the_end_of_the_folders_log(
    old: Events, new: Events, own: Events
) -> None:
    """Whatever came in since, and whatever rows are beside it."""
    found, known = running(old), past(old).known()
    found.add(new)
    (item_B, time_B), wanted = rows([math.nan]), known.at(*rows([float(known.end) + 1]))
    mixed_B = torch.cat([time_B, time_B.nan_to_num(4.0 * END)])
    with_own = WithGiven.of(found, [[(item, float(time)) for item, time in own]])
    for past_of_all, given_B in ((found, None), (with_own, torch.zeros_like(item_B.repeat(2)))):
        beside = past_of_all.at(item_B.repeat(2), mixed_B, given_B)
        assert_equal((beside[0][: len(item_B)], beside[1][: len(item_B)]), wanted)
