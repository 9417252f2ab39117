"""The encoder of ordered events against its naive forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys_moe.model.encoders.mixers import MIXERS
from recsys_moe.model.encoders.sequence import EventSequence
from recsys_moe.model.request import Events, Request

LENGTH, DIM, ITEMS = 12, 4, 9


def encoder(mixer: str) -> EventSequence:
    torch.manual_seed(0)
    made = EventSequence(mixer, DIM, length=LENGTH, blocks=2, dropout=0.0)
    torch.nn.init.normal_(made.nothing_D)
    for parameter in (made.about_3D, made.expected_D, made.so_far_2D):
        torch.nn.init.normal_(parameter)
    return made.eval()


@st.composite
def events(draw: st.DrawFn) -> Events:
    windows = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    pairs = st.tuples(st.integers(0, windows - 1), st.integers(0, LENGTH))
    window_B, place_B = zip(*draw(st.lists(pairs, min_size=1, max_size=12)), strict=True)
    shape = windows, LENGTH
    value_ML = torch.randn(shape, generator=generator)
    value_ML[torch.rand(shape, generator=generator) < 0.3] = torch.nan
    return Events(
        torch.randint(ITEMS, shape, generator=generator),
        value_ML,
        torch.rand(shape, generator=generator, dtype=torch.float64).cumsum(1) * 1e5,
        torch.tensor(window_B),
        torch.tensor(place_B),
    )


@pytest.mark.parametrize("mixer", MIXERS)
@given(events())
@settings(max_examples=10, deadline=None)
def test_each_row_is_what_its_own_events_alone_give(mixer: str, made: Events) -> None:
    """Windows of any width together, against one row after the other with nothing behind it."""
    part, table_ID = encoder(mixer), torch.randn(ITEMS, DIM)
    rows = len(made.place)
    nobody = torch.zeros(rows, dtype=torch.long)
    with torch.no_grad():
        found_BD = part(Request(nobody, nobody, None, made, table_ID[made.item]))
        for row in range(rows):
            place, window = int(made.place[row]), int(made.window[row])
            if not place:
                torch.testing.assert_close(found_BD[row], part.nothing_D)
                continue
            own = Events(*(one[window : window + 1, :place] for one in made[:3]), *made[3:])
            alone_LD = part.encode(table_ID[own.item], own)[0]
            torch.testing.assert_close(found_BD[row], alone_LD[-1], atol=2e-5, rtol=2e-5)


def test_a_row_without_events_has_the_learned_vector() -> None:
    part, nobody = encoder("gru"), torch.zeros(2, dtype=torch.long)
    assert torch.equal(part(Request(nobody, nobody)), part.nothing_D.expand(2, -1))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_batch_of_no_rows_gives_every_weight_a_gradient_of_zero(mixer: str) -> None:
    """As of a process without rows in a last batch: the others wait for its gradients."""
    part, nobody = encoder(mixer).train(), torch.zeros(0, dtype=torch.long)
    none = torch.zeros(0, 1)
    request = Request(
        nobody, nobody, None, Events(none.long(), none, none.double(), nobody, nobody)
    )
    part(request._replace(item_vectors=torch.zeros(0, 1, DIM))).sum().backward()
    for name, parameter in part.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=20)
@given(log=events(), split=st.integers(0, LENGTH - 1))
def test_further_events_after_a_state_say_what_steps_say(
    mixer: str, log: Events, split: int
) -> None:
    """Of windows with 1 event or more after the state, and padding without ratings."""
    made, rows = encoder(mixer), log.item.shape[0]
    item_MLD = torch.randn(ITEMS, DIM)[log.item]
    count_M = torch.arange(rows) % (LENGTH - split) + 1
    is_padding_ML = torch.arange(LENGTH - split) >= count_M[:, None]
    value_ML = log.value[:, split:].masked_fill(is_padding_ML, torch.nan)
    with torch.no_grad():
        state = made.start(rows)
        for place in range(split):
            state = made.step(item_MLD[:, place], log.value[:, place], log.time[:, place], state)[1]
        ends = log.item[:, split:], value_ML, log.time[:, split:], torch.arange(rows), count_M
        found_MD = made.extend(item_MLD[:, split:], Events(*ends), state, made.prepared())
        for place in range(split, split + int(count_M.max())):
            out_MD, state = made.step(
                item_MLD[:, place], log.value[:, place], log.time[:, place], state
            )
            ending_M = count_M == place - split + 1
            torch.testing.assert_close(found_MD[ending_M], out_MD[ending_M], rtol=1e-5, atol=1e-5)
