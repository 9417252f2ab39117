"""`data.events_dropout`: some training rows see a user who has done nothing yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.config.settings import parse_config
from recsys_moe.data.rows import Batch
from recsys_moe.train.loader import RecDataModule
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL

RATE = 0.3


def batches(folder: Path, rate: float, **settings: Any) -> list[Batch]:
    """Of an epoch, without other random draws. The model reads its users' own time, too."""
    model = {**TINY_MODEL, **SEQUENCE_MODEL, "time_features": "all"}
    data = {"id_dropout": 0.0, "context_dropout": 0.0, "events_dropout": rate, **settings}
    sections = {"model": model, "data": data, "trainer": {"batch_size": 256}}
    return [*RecDataModule(folder, parse_config(sections)).train_batches(0)]


@pytest.mark.parametrize("megabytes", [4096, 1])
def test_a_share_of_the_rows_loses_its_events_and_nothing_else(timed: Path, megabytes: int) -> None:
    gone = rows = 0
    settings = {"max_memory_mb": megabytes}
    pairs = zip(batches(timed, 0.0, **settings), batches(timed, RATE, **settings), strict=True)
    for whole, some in pairs:
        assert torch.equal(whole.user, some.user) and torch.equal(whole.item, some.item)
        assert whole.events is not None and some.events is not None
        lost_B = (some.events.place == 0) & (whole.events.place > 0)
        assert torch.equal(some.events.place[~lost_B], whole.events.place[~lost_B])
        gone, rows = gone + int(lost_B.sum()), rows + int((whole.events.place > 0).sum())
    assert rows > 500  # so that .06 are three standard deviations, sqrt(.3 x .7 / 500) = .02
    assert gone / rows == pytest.approx(RATE, abs=0.06)


def test_a_row_without_events_is_that_of_a_user_who_had_none(timed: Path) -> None:
    """Also in what time features tell of the user; what they tell of the item stays."""
    for whole, some in zip(batches(timed, 0.0), batches(timed, 0.9), strict=True):
        assert whole.moment and some.moment and some.events and whole.events
        none_B, had_B = some.events.place == 0, whole.events.place > 0
        assert some.moment.last[none_B].isnan().all() and not some.moment.events[none_B].any()
        assert (whole.moment.events[none_B & had_B] > 0).all() and (none_B & had_B).any()
        kept_B = ~none_B
        assert torch.equal(some.moment.last[kept_B], whole.moment.last[kept_B])
        assert torch.equal(some.moment.events[kept_B], whole.moment.events[kept_B])
        assert torch.equal(some.moment.time, whole.moment.time)


def test_a_row_that_lost_its_time_does_not_tell_how_many_events_there_were(timed: Path) -> None:
    for batch in batches(timed, 0.5, context_dropout=0.5):
        assert batch.moment
        assert batch.moment.events[batch.moment.time.isnan()].isnan().all()
