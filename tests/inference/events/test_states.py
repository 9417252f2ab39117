"""States of users: a request with events costs its steps, and says what the window says."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.inference.events import live, user_vectors
from recsys_moe.inference.events.states import Entry, History, States
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.encoders.sequence import EventSequence

SMAPS = Path("/proc/self/smaps")
LATER = 1_100_000_000.0


@pytest.fixture
def predictor(sequence_run: Path) -> Predictor:
    return Predictor.load(sequence_run)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the windows that are encoded whole."""
    sizes: list[int] = []
    plain = EventSequence.read

    def counted(self: EventSequence, item_MLD: Tensor, events: Any) -> Any:
        sizes.append(len(item_MLD))
        return plain(self, item_MLD, events)

    monkeypatch.setattr(EventSequence, "read", counted)
    return sizes


def own(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"item": f"i{n % 31}", "time": LATER + n, "value": 1 + n % 5}
        for n in range(start, start + count)
    ]


def watch(predictor: Predictor, users: list[str], **options: Any) -> Tensor:
    return predictor.score(users, ["i3"] * len(users), **options).tasks["watch"]


def test_vectors_equal_whole_windows(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known users with long and short timelines and unknown ones, 0 to 20 events, window of 8."""
    users = [*predictor.users.ids.to_pylist(), "someone"]
    events = [own(n % 21, n) for n, _ in enumerate(users)]
    observed = [{"user": one, **own(1, 5)[0]} for one in users[::3]]
    for _ in range(2):
        found = watch(predictor, users, events=events)
        with monkeypatch.context() as patch:
            patch.setattr(live, "MOST_ROWS", 0)
            expected = watch(predictor, users, events=events)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        predictor.observe(observed)


def test_a_second_request_reads_no_window_again(predictor: Predictor, read: list[int]) -> None:
    users = ["u0", "u1", "someone"]
    watch(predictor, users, events=own(2))
    assert sum(read) == 2  # nobody has stored events
    watch(predictor, users, events=own(2, 7))
    assert sum(read) == 2
    predictor.observe([{"user": "u0", **own(1)[0]}])
    watch(predictor, users, events=own(2, 7))
    assert sum(read) == 3


def test_an_event_of_the_second_of_a_stored_one_or_before_is_merged_by_time(
    predictor: Predictor, read: list[int]
) -> None:
    predictor.observe([{"user": "u0", **one} for one in own(3)])
    stored = watch(predictor, ["u0"])
    assert torch.equal(watch(predictor, ["u0"], events=own(3)), stored)  # known: nothing is new
    early = {"item": "i7", "time": LATER + 0.5}
    assert not torch.equal(watch(predictor, ["u0"], events=[early]), stored)
    predictor.observe([{"user": "u0", **early}])
    inline = watch(Predictor(predictor.artifact), ["u0"], events=[*own(3), early])
    torch.testing.assert_close(watch(predictor, ["u0"]), inline, rtol=0, atol=1e-6)


def test_the_last_event_of_the_folder_changes_nothing_when_a_request_brings_it(
    predictor: Predictor,
) -> None:
    stored = predictor.artifact.events
    user = int(stored["first"].diff().argmax())
    last = int(stored["first"][user + 1]) - 1
    [name] = predictor.users.texts(torch.tensor([user]))
    [item] = predictor.items.texts(stored["item"][last : last + 1].long())
    event = {"item": item, "time": float(stored["time"][last])}
    plain = watch(predictor, [name])
    assert torch.equal(watch(predictor, [name], events=[event]), plain)
    assert not torch.equal(watch(predictor, [name], events=[{**event, "item": "?"}]), plain)


def test_more_events_than_steps_are_encoded_whole(
    predictor: Predictor, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_vectors, "MOST_STEPS", 2)
    by_steps = watch(predictor, ["someone"], events=own(2))
    assert not read
    whole = watch(predictor, ["someone"], events=own(3))
    assert read == [1] and not torch.equal(whole, by_steps)


def test_states_are_bounded_and_those_used_last_stay(predictor: Predictor, read: list[int]) -> None:
    model = predictor.artifact.model
    slot = States(model, megabytes=1).slots
    states = States(model, megabytes=3.5 / slot)
    assert states.slots == 3

    def history(name: str) -> History:
        return History((), name, before=lambda: [Entry(LATER, ord(name) % 30, 0.5)])

    first = states.vectors([history(one) for one in "abc"])
    states.vectors([history("a"), history("d")])  # b leaves
    assert sum(read) == 4
    torch.testing.assert_close(states.vectors([history(one) for one in "ca"]), first[[2, 0]])
    assert sum(read) == 4
    many = states.vectors([history(one) for one in "abcdefgh"])
    torch.testing.assert_close(many[:3], first)


def test_no_row_has_no_vector(predictor: Predictor) -> None:
    assert watch(predictor, []).shape == (0,)


@pytest.mark.skipif(not SMAPS.exists(), reason="pages in use are read from /proc")
def test_a_new_table_takes_memory_where_users_are_written_alone(predictor: Predictor) -> None:
    """Each new model has one: pages that were in use before would add up."""

    def resident(table: Tensor) -> int:
        """Bytes in use of the memory map that holds the table."""
        lines = iter(SMAPS.read_text().splitlines())
        for line in lines:
            first, _, last = line.split()[0].partition("-")
            if last and int(first, 16) <= table.data_ptr() < int(last, 16):
                break
        return next(1024 * int(one.split()[1]) for one in lines if one.startswith("Rss:"))

    used = [torch.ones(5 * 2**20 // 4) for _ in range(20)]
    del used  # 100 MB that a table could be given again
    states = States(predictor.artifact.model, megabytes=100)
    assert max(map(resident, states._table)) <= 2 * mmap.PAGESIZE  # row 0: before any event
    states.vectors([History((), "a", before=lambda: [Entry(LATER, 0, 0.5)])])
    assert max(map(resident, states._table)) <= 2 * mmap.PAGESIZE  # and row 1, beside it
    states._table[0].fill_(1.0)
    assert resident(states._table[0]) > 2 * mmap.PAGESIZE
