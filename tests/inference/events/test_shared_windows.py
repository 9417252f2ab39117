"""Rows of a user at several times read one window, each what is before its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.inference.events import live
from recsys_moe.inference.events.user_events import UserEvents
from recsys_moe.inference.predictor import Event, Predictor
from recsys_moe.inference.scoring.pair_scores import PairScorer
from recsys_moe.model.encoders.sequence import EventSequence
from recsys_moe.model.request import Events
from tests.live import START

LATER = START + 400 * 86_400
LENGTH = 8
OBSERVED = {"new": 5, "busy": 20, "u1": 6, "u2": 1}
"""Events of users, one a minute; a model reads the last LENGTH."""


@pytest.fixture
def predictor(sequence_run: Path) -> Predictor:
    found = Predictor.load(sequence_run)
    assert found.store is not None
    found.store.keep(
        Event(f"i{n % 30}", LATER + 60.0 * (n - n % 4 // 3), 1 + n % 5, user=user)
        for user, count in OBSERVED.items()
        for n in range(count)
    )
    return found


def read(
    predictor: Predictor, users: list[str], time_B: Tensor, given: Any = None
) -> tuple[UserEvents, Any, Events]:
    whom, events = predictor.resolve(users), predictor._user_events
    assert events is not None
    windows = events.asked(whom.index_N, whom.identities, given, time_B=time_B)
    found = events.events(windows)
    assert found is not None
    return events, windows, found


def each_reads_its_own(users: UserEvents, windows: Any, found: Events) -> None:
    """The naive twin: the timeline of each row, joined for it alone."""
    for row, window in enumerate(windows.window_B.tolist()):
        wanted = users.joined(windows.asked[window])
        at, place = int(found.window[row]), int(found.place[row])
        assert place == len(wanted)
        assert found.item[at, :place].tolist() == [one.item for one in wanted]
        assert found.time[at, :place].tolist() == [one.time for one in wanted]
        values = torch.tensor([one.value for one in wanted])
        torch.testing.assert_close(found.value[at, :place], values, rtol=0, atol=0, equal_nan=True)


def rows(repeats: int = 30) -> tuple[list[str], Tensor]:
    """Of users in turn at times around their events, some unknown, some of now."""
    users = [*OBSERVED, "u3", "nobody"] * repeats
    generator = torch.Generator().manual_seed(0)
    time_B = LATER + torch.randint(-300, 1500, (len(users),), generator=generator).double()
    time_B[::7], time_B[::11] = torch.nan, LATER + 1e6
    time_B[::5] = START + torch.randint(0, 40 * 86_400, (len(time_B[::5]),), generator=generator)
    return users, time_B.double()


def test_a_row_reads_what_its_own_window_would_hold(predictor: Predictor) -> None:
    users, time_B = rows()
    each_reads_its_own(*read(predictor, users, time_B))
    own = [{"item": "i9", "time": LATER + 200.0 * n} for n in range(12)]
    each_reads_its_own(*read(predictor, users, time_B, own))
    empty: list[Any] = [own[: n % 3] for n in range(len(users))]  # lists of nothing are several
    each_reads_its_own(*read(predictor, users, time_B, empty))
    latest_first = torch.tensor([LATER + 900.0, LATER + 130.0])
    each_reads_its_own(*read(predictor, ["new", "new"], latest_first.double(), [[], []]))


def test_a_short_timeline_is_one_window_at_all_times(predictor: Predictor) -> None:
    """And a longer one has as many as there are events that it may begin at."""
    time_B = LATER + 30.0 + 60.0 * torch.arange(-3, 25).double()
    for user, most in (("new", 1), ("busy", OBSERVED["busy"] - LENGTH + 1)):
        _, windows, found = read(predictor, [user] * len(time_B), time_B)
        assert len(windows.asked) > 4 and len(found.item) <= most


def test_no_row_has_no_windows(predictor: Predictor) -> None:
    users = predictor._user_events
    assert users is not None
    nobody = torch.empty(0, dtype=torch.long)
    assert users.events(users.asked(nobody, {}, time_B=nobody.double())) is None


def test_rows_of_many_batches_encode_a_window_about_once(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users come in turn; a window may lie across two batches."""
    encoded: list[int] = []
    encode = EventSequence.encode

    def counted(self: EventSequence, item_MLD: Tensor, events: Events) -> Tensor:
        encoded.append(len(item_MLD))
        return encode(self, item_MLD, events)

    users, batch = [*OBSERVED, "u3", "u4"] * 40, 24
    items = [f"i{n % 30}" for n in range(len(users))]
    alone = predictor.score(users, items).tasks
    monkeypatch.setattr(live, "MOST_ROWS", 0)
    monkeypatch.setattr(EventSequence, "encode", counted)
    scorer = PairScorer(predictor.artifact, predictor._ranker, batch)
    monkeypatch.setattr(predictor, "_pair_scores", scorer)
    found = predictor.score(users, items).tasks
    assert sum(encoded) <= len(OBSERVED) + 2 + len(users) // batch
    for task, values_B in alone.items():
        torch.testing.assert_close(found[task], values_B, rtol=1e-5, atol=1e-5)


def test_rows_that_are_routed_together_keep_their_order(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = PairScorer(predictor.artifact, predictor._ranker, 2)
    _, _, events = read(predictor, ["u2", "u1", "u2"], torch.full((3,), torch.nan).double())
    request = predictor._asked(predictor.resolve(["u2", "u1", "u2"]), None, None, items=True)
    request = request._replace(events=events)
    order_B = scorer._order(request)
    assert order_B is not None and order_B.tolist() == [0, 2, 1]
    monkeypatch.setattr(predictor._ranker.draws, "_together", True)
    assert scorer._order(request) is None
