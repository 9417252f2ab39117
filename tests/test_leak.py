"""No row reads what happened at its own time or later, whatever the encoder and the tie rule.

Requests, files and the service: tests/inference/events/test_item_events.py and
tests/train/test_times_of_requests.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.columns import StoredColumns
from recsys_moe.data.events import EventLog, TimedRows
from recsys_moe.data.histories import read_events
from recsys_moe.data.item_past import ItemPast
from recsys_moe.data.rows import Columns, History, TieRule, Timelines
from recsys_moe.model.encoders.mixers import MIXERS
from recsys_moe.schema import SPLITS, Schema
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.timed import ITEMS

LENGTH = 6
TIES: tuple[TieRule, ...] = ("strict", "log")


def config(mixer: str, ties: TieRule = "strict") -> Config:
    model = {"embedding_dim": 8, "num_experts": 4, "expert_dim": 8, "tower_dims": [4]}
    model |= {"sequence": mixer, "sequence_length": LENGTH, "bilinear_rank": 8}
    model |= {"bilinear_diagonal": True, "next_item_weight": 1.0}
    trainer = {"max_epochs": 1, "batch_size": 64, "logger": "csv"}
    return parse_config({"model": model, "data": {"tie_rule": ties}, "trainer": trainer})


@pytest.fixture(scope="module")
def modules(timed: Path) -> dict[str, RecModule]:
    """An untrained model per mixer: what it computes depends on all that it reads."""
    found = {}
    for mixer in MIXERS:
        module, data = RecModule(config(mixer)), RecDataModule(timed, config(mixer))
        module.set_up(data)
        for parameter in module.model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        found[mixer] = module
    return found


def events(folder: Path) -> TimedRows:
    schema = Schema.load(folder)
    parts = [one for split in SPLITS for one in read_events(folder, schema, split)]
    return TimedRows(*(torch.cat(column) for column in zip(*parts, strict=True)))


def changed(rows: TimedRows, late_N: Tensor, seed: int) -> Iterator[TimedRows]:
    """The log with its late events deleted, replaced, and permuted among the users' late ones."""
    generator = torch.Generator().manual_seed(seed)
    yield TimedRows(*(column[~late_N] for column in rows))
    other = torch.randint(int(rows.item.max()) + 1, (len(late_N),), generator=generator).int()
    value = torch.randn(len(late_N), generator=generator)
    yield rows._replace(
        item=torch.where(late_N, other, rows.item), value=torch.where(late_N, value, rows.value)
    )
    item_N, place_L = rows.item.clone(), late_N.nonzero()[:, 0]
    item_N[place_L] = rows.item[place_L[torch.randperm(len(place_L), generator=generator)]]
    yield rows._replace(item=item_N)


@pytest.fixture(scope="module", params=["none", *MIXERS])
def timekeeper(timed: Path, request: pytest.FixtureRequest) -> RecModule:
    """An untrained model that reads the time of a row in every way, without and with a sequence."""
    model = {"sequence": request.param} | {
        "embedding_dim": 8,
        "num_experts": 4,
        "expert_dim": 8,
        "tower_dims": [4],
    }
    model |= {"time_features": "all", "sequence_length": LENGTH, "popularity_half_life": 0.001}
    module = RecModule(parse_config({"model": model}))
    module.set_up(RecDataModule(timed, module.config))
    for parameter in module.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.model.eval()
    return module


def timed_rows(
    rows: Columns, log: EventLog, ties: TieRule, times: tuple[Tensor, Tensor]
) -> Columns:
    """Rows that know when they are, and what was before."""
    items = ItemPast(log, ITEMS, 0.001)
    lines = Timelines(log, LENGTH, has_moments=True, items=items)
    return History(lines, ties).told(rows, *times)


@torch.no_grad()
def outputs(module: RecModule, rows: Columns) -> list[Tensor]:
    """Logits and vectors of the rows, and the logits of the whole catalogue for their users."""
    assert rows.history is not None and rows.timelines is not None and rows.time is not None
    request = rows.take(slice(None)).request
    output = module.model(request)
    users = request._replace(moment=rows.timelines.moment(rows.history, rows.time))
    ranker = module.model.ranker(module.model.draws(0), 1)
    return [output.logits_BT, output.aux["users"], ranker.grid(users, torch.arange(ITEMS), 0)]


@pytest.mark.parametrize("ties", TIES)
@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_the_time_of_a_row_tells_it_nothing_of_its_time_or_later(
    timed: Path, timekeeper: RecModule, ties: TieRule, seed: int
) -> None:
    """Hour, gap, count, and age and popularity of its item and of all others."""
    schema, whole = Schema.load(timed), events(timed)
    stored = StoredColumns(timed, schema, "test")
    rows, (event_N, time_N) = stored.load(), stored.times(0)
    row = seed % len(rows)
    moment, user, event = int(time_N[row]), int(rows.user[row]), int(event_N[row])
    late_N = whole.time >= moment
    if ties == "log":  # the user's own events of that second may count; those of items do not
        late_N &= (whole.time > moment) | (whole.user != user) | (whole.event >= event)
    asked, times = rows.part(slice(row, row + 1)), (event_N[row, None], time_N[row, None])
    size = schema.user.size
    before = outputs(timekeeper, timed_rows(asked, EventLog(whole, size), ties, times))
    for log in changed(whole, late_N, seed):
        after = outputs(timekeeper, timed_rows(asked, EventLog(log, size), ties, times))
        assert all(map(torch.equal, before, after))
    early_N = whole.time < moment
    other = whole._replace(item=torch.where(early_N, (whole.item + 1) % ITEMS, whole.item))
    after = outputs(timekeeper, timed_rows(asked, EventLog(other, size), ties, times))
    assert not torch.equal(before[2], after[2])  # else the rest could not fail


def test_a_training_batch_reads_of_items_what_was_before_each_row(
    timed: Path, timekeeper: RecModule
) -> None:
    """Of the rows of a batch, what happens in between reaches the late ones alone."""
    schema, whole = Schema.load(timed), events(timed)
    stored = StoredColumns(timed, schema, "train")
    rows, times = stored.load(), stored.times(0)
    moment = int(times[1].median())
    early_N, late_N = times[1] <= moment, whole.time >= moment
    found = [
        outputs(timekeeper, timed_rows(rows, EventLog(log, schema.user.size), "strict", times))[0]
        for log in (whole, *changed(whole, late_N, 3))
    ]
    for other in found[1:]:
        assert torch.equal(found[0][early_N], other[early_N])
        assert not torch.equal(found[0][~early_N], other[~early_N])


def told(rows: Columns, log: EventLog, ties: TieRule, times: tuple[Tensor, Tensor]) -> Columns:
    return History(Timelines(log, LENGTH), ties).told(rows, *times)


@pytest.mark.parametrize("ties", TIES)
@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_no_output_of_a_row_changes_with_what_happens_at_its_time_or_later(
    timed: Path, modules: dict[str, RecModule], ties: TieRule, seed: int
) -> None:
    schema, whole = Schema.load(timed), events(timed)
    stored = StoredColumns(timed, schema, "test")
    rows, (event_N, time_N) = stored.load(), stored.times(0)
    row = seed % len(rows)
    moment = int(time_N[row])
    late_N = whole.time >= moment
    same_N = time_N == moment
    if ties == "log":  # of the same second, what the user's timeline has before stays
        user, event = int(rows.user[row]), int(event_N[row])
        late_N = (whole.time > moment) | (late_N & ((whole.user != user) | (whole.event >= event)))
        same_N = torch.arange(len(rows)) == row
    asked = rows.part(same_N)
    times = event_N[same_N], time_N[same_N]
    before = told(asked, EventLog(whole, schema.user.size), ties, times)
    for log in changed(whole, late_N, seed):
        after = told(asked, EventLog(log, schema.user.size), ties, times)
        for module in modules.values():
            model = module.model.eval()
            with torch.no_grad():
                pairs = [model(one.take(slice(None)).request) for one in (before, after)]
                assert torch.equal(pairs[0].logits_BT, pairs[1].logits_BT)
                assert torch.equal(pairs[0].aux["users"], pairs[1].aux["users"])


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_training_batch_reads_no_event_of_the_row_or_behind_it(
    timed: Path, modules: dict[str, RecModule], mixer: str
) -> None:
    """Rows of a batch share windows that hold the events of later rows; no earlier one reads
    them."""
    schema, whole = Schema.load(timed), events(timed)
    stored = StoredColumns(timed, schema, "train")
    rows, (event_N, time_N) = stored.load(), stored.times(0)
    place_B = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))[:200]
    moment = int(time_N[place_B].median())
    early_B = time_N[place_B] < moment
    model = modules[mixer].model.eval()
    late_N = whole.time >= moment
    logs = [whole, *[*changed(whole, late_N, 3)][1:]]
    logs.append(whole._replace(time=torch.where(late_N, whole.time + 9 * 86_400, whole.time)))
    outputs = []
    for log in logs:
        seen = told(rows, EventLog(log, schema.user.size), "log", (event_N, time_N))
        with torch.no_grad():
            outputs.append(model(seen.take(place_B, shared=True).request).logits_BT)
    for other in outputs[1:]:
        assert torch.equal(outputs[0][early_B], other[early_B])
        assert not torch.equal(outputs[0][~early_B], other[~early_B])


def test_the_model_reads_the_past_at_all(timed: Path, modules: dict[str, RecModule]) -> None:
    """Else the tests above could not fail."""
    schema, whole = Schema.load(timed), events(timed)
    stored = StoredColumns(timed, schema, "test")
    rows, times = stored.load(), stored.times(0)
    before = told(rows, EventLog(whole, schema.user.size), "log", times)
    other = whole._replace(item=(whole.item + 1) % schema.item.size)
    after = told(rows, EventLog(other, schema.user.size), "log", times)
    for module in modules.values():
        model = module.model.eval()
        with torch.no_grad():
            one, two = (model(c.take(slice(None)).request).logits_BT for c in (before, after))
        history_N = before.history[:, 1] > before.history[:, 0]  # type: ignore[index]
        assert bool((one != two).any(1)[history_N].all())
        assert torch.equal(one[~history_N], two[~history_N])
