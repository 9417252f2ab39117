"""What the time of a row adds: to the user's vector, and to the logits."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.model.encoders.moment import (
    GAP_STEPS,
    SIZES,
    WIDEST,
    SinceLast,
    UserMoment,
    mean_and_std,
)
from recsys_moe.model.request import Events, Moment, Request
from recsys_moe.model.trend import KNOTS, Trend

NAN = math.nan


def moment(
    time: float = NAN, last: float = NAN, events: int = 0, age: float = NAN, popular: float = NAN
) -> Moment:
    times = torch.tensor([time]).double(), torch.tensor([last]).double()
    return Moment(
        *times, torch.tensor([float(events)]), torch.tensor([age]), torch.tensor([popular])
    )


def row(**known: float) -> Request:
    one = torch.zeros(1, dtype=torch.long)
    return Request(one, one, moment=moment(**known))  # type: ignore[arg-type]


@given(st.integers(0, 4 * 10**9))
def test_hour_and_weekday_are_those_of_the_calendar_in_utc(second: int) -> None:
    found = UserMoment(["hour", "weekday"], 2).values(moment(time=second + 0.25))
    there = datetime.fromtimestamp(second, UTC)
    assert found.tolist() == [[there.hour, there.weekday()]]


def test_gap_and_events_are_logarithms_and_unknown_without_a_time_or_an_event() -> None:
    read = UserMoment(["gap", "events"], 2).values
    assert read(moment(time=100, last=40, events=3))[0].tolist() == pytest.approx(
        [math.log(61), math.log(4)]
    )
    assert read(moment(time=40, last=100, events=3))[0, 0] == 0  # asked about the past
    assert read(moment(last=40, events=3))[0].isnan().tolist() == [True, False]
    assert read(moment(time=100))[0].isnan().tolist() == [True, False]


def test_a_model_starts_as_without_time_and_an_unknown_time_adds_nothing() -> None:
    encoder, trend = UserMoment([*SIZES], 3), Trend(["age", "popularity"], 3, 2)
    known = row(time=1e9, last=1e9 - 60, events=2, age=900.0, popular=2.0)
    assert not encoder(known).any()
    user_BD = torch.ones(1, 3)
    assert known.moment is not None
    assert not trend(user_BD, known.moment).any()
    for parameter in (*encoder.parameters(), *trend.parameters()):
        torch.nn.init.ones_(parameter)
    assert encoder(known).all()
    assert trend(user_BD, known.moment).all()
    unknown = row(events=0)
    encoder = UserMoment(["hour", "weekday", "gap"], 3)
    torch.nn.init.ones_(encoder.table_RD)
    assert unknown.moment is not None
    assert not encoder(unknown).any()
    assert not encoder(unknown._replace(moment=None)).any()
    assert not trend(user_BD, unknown.moment).any()


@torch.no_grad()
def naive_since_last(layer: SinceLast, x_D: Tensor, seconds: float) -> list[float]:
    """Unit by unit, with scalars of Python."""
    x = [float(one) for one in x_D]
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in x) / len(x) + layer.norm.eps)
    normed = [(one - mean) / deviation for one in x]
    step = min(math.log2(1 + seconds), GAP_STEPS - 1)
    low = min(math.floor(step), GAP_STEPS - 2)
    found = x
    for h, weights in enumerate(layer.wide.weight.tolist()):
        gaps = float(layer.gap_GH[low, h]), float(layer.gap_GH[low + 1, h])
        inside = sum(w * one for w, one in zip(weights, normed, strict=True))
        inside += float(layer.wide.bias[h]) + gaps[0] + (step - low) * (gaps[1] - gaps[0])
        inside *= (1 + math.erf(inside / math.sqrt(2))) / 2  # gelu
        added = layer.narrow_HD[h].tolist()
        found = [one + inside * more for one, more in zip(found, added, strict=True)]
    return found


@given(st.sampled_from([0, 1, 3, 59, 86_400, 2**25 - 1, 2**25, 10**12]), st.integers(0, 99))
def test_the_time_since_the_last_event_enters_by_its_formula(seconds: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = SinceLast(3)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    layer.norm.reset_parameters()
    x_BD = torch.randn(1, 3, generator=generator)
    found = layer(x_BD, moment(time=5.0 + seconds, last=5.0))[0].tolist()
    assert found == pytest.approx(naive_since_last(layer, x_BD[0], seconds), rel=1e-4, abs=1e-4)


def test_nothing_follows_from_an_unknown_time_a_first_event_or_an_untrained_layer() -> None:
    layer, x_BD = SinceLast(3), torch.randn(1, 3)
    assert torch.equal(layer(x_BD, moment(time=9.0, last=5.0)), x_BD)
    for parameter in layer.parameters():
        torch.nn.init.ones_(parameter)
    assert not torch.equal(layer(x_BD, moment(time=9.0, last=5.0)), x_BD)
    for told in (None, moment(last=5.0), moment(time=9.0)):
        assert torch.equal(layer(x_BD, told), x_BD)


def test_a_request_about_the_past_counts_as_one_at_the_last_event() -> None:
    layer, x_BD = SinceLast(3), torch.randn(1, 3)
    torch.nn.init.normal_(layer.narrow_HD)
    at, before = moment(time=5.0, last=5.0), moment(time=2.0, last=5.0)
    assert torch.equal(layer(x_BD, at), layer(x_BD, before))


@torch.no_grad()
def naive_trend(trend: Trend, user_D: Tensor, raw: list[float]) -> list[float]:
    """Term by term."""
    logits = [0.0, 0.0]
    for f, value in enumerate(raw):
        x = (math.log1p(value) - float(trend.mean_F[f])) / float(trend.std_F[f])
        x = min(max(x, -WIDEST), WIDEST)
        pieces = [x, *(max(x - knot, 0.0) for knot in KNOTS)]
        for t in range(2):
            for p, piece in enumerate(pieces):
                logits[t] += piece * float(trend.piece_PT[f * len(pieces) + p, t])
            logits[t] += x * sum(
                float(user_D[d]) * float(trend.user_DX[d, f * 2 + t]) for d in range(len(user_D))
            )
    return logits


@given(st.floats(0, 1e8), st.floats(0, 1e4), st.integers(0, 99))
def test_the_trend_is_its_formula(age: float, popularity: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    trend = Trend(["age", "popularity"], 3, 2)
    for parameter in trend.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    trend.standardise(torch.tensor([2.0, 0.5]), torch.tensor([1.5, 0.7]))
    user_BD = torch.randn(1, 3, generator=generator)
    found = trend(user_BD, moment(age=age, popular=popularity))[0].tolist()
    wanted = naive_trend(trend, user_BD[0], [age / 3600, popularity])
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_means_are_of_the_known_values_over_all_parts() -> None:
    parts = [torch.tensor([[1.0, NAN, NAN], [3.0, 7.0, NAN]]), torch.tensor([[NAN, 7.0, NAN]])]
    mean_C, std_C = mean_and_std(parts)
    assert mean_C.tolist() == [2.0, 7.0, 0.0]  # (1 + 3) / 2, 7, nothing
    assert std_C.tolist() == [1.0, 1.0, 1.0]  # of 1 and 3; equal values; nothing


def test_a_served_row_reads_last_event_and_count_from_its_window() -> None:
    time_ML = torch.tensor([[5.0, 8.0, 0.0]]).double()
    columns = torch.zeros(1, 3).long(), torch.zeros(1, 3), time_ML
    events = Events(*columns, torch.tensor([0, 0, 0]), torch.tensor([2, 1, 0]))
    found = Moment.of(torch.tensor([9.0, 9.0, 9.0]).double(), events)
    assert found.events.tolist() == [2, 1, 0]
    assert found.last[:2].tolist() == [8, 5]
    assert found.last[2].isnan()
