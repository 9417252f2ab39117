"""research/time_peers/sequences: sessions of peers end strictly before the event they rank."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from research.time_peers import sequences
from research.time_peers.log import Log

USER = np.array([0, 0, 0, 0, 1, 1])
ITEM = np.array([3, 1, 0, 2, 4, 3])
TIME = np.array([10, 20, 30, 45, 5, 9])
LOG = Log(USER, ITEM, np.ones(6), TIME)


def test_the_last_event_is_ranked_and_epochs_are_chosen_by_the_one_before() -> None:
    parts = sequences.split(LOG, None)
    assert np.flatnonzero(parts.ranked).tolist() == [3, 5]
    assert np.flatnonzero(parts.chosen).tolist() == [2, 4]
    assert np.flatnonzero(parts.fitted).tolist() == [0, 1]


def test_events_after_a_cut_are_ranked_and_the_last_ones_before_it_choose_epochs() -> None:
    parts = sequences.split(LOG, 20)
    assert np.flatnonzero(parts.ranked).tolist() == [2, 3]
    assert np.flatnonzero(parts.chosen).tolist() == [1, 5]
    assert np.flatnonzero(parts.fitted).tolist() == [0, 4]


def test_a_window_holds_what_the_user_had_before_and_how_long_before_its_last_event() -> None:
    token_BL, ago_BL = sequences.windows(LOG, np.array([3, 4, 5]))
    assert token_BL[0, -4:].tolist() == [0, 4, 2, 1]  # items 3, 1, 0
    assert ago_BL[0, -4:].tolist() == [0, 20, 10, 0]  # 30 - 10, 30 - 20, 30 - 30
    assert not token_BL[1].any()  # nothing before a first event
    assert token_BL[2, -2:].tolist() == [0, 5]


def test_ranks_leave_out_what_the_user_had() -> None:
    """Scores fall with the item's number: before item 2 only items 0, 1 and 3 could stand, which
    user 0 had; before item 3 of user 1, who had 4, stand 0, 1 and 2."""

    def score(token_BL: Tensor, ago_BL: Tensor) -> Tensor:
        return -torch.arange(5.0).expand(len(token_BL), -1)

    ranked = sequences.split(LOG, None).ranked
    assert sequences.ranks(score, LOG, ranked).tolist() == [0, 3]
