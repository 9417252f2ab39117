"""Negatives that are drawn anew: which rows, among which items, by which law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import Batch, Columns, load_columns
from recsys_moe.data.negatives import FreshNegatives
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="module")
def schema(prepared: Path) -> Schema:
    return Schema.load(prepared)


def columns(user: list[int], item: list[int], watched: list[int]) -> Columns:
    """`watched` rows have a rating of 3 too, others no label but 0."""
    labels = [[float(one), 3.0 if one else torch.nan] for one in watched]
    indices = [torch.tensor(values, dtype=torch.int32) for values in (user, item)]
    return Columns(*indices, torch.tensor(labels))


def pairs(rows: Columns) -> set[tuple[int, int]]:
    return set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))


@given(seed=st.integers(0, 2**63 - 1))
def test_only_drawn_rows_change_and_never_to_an_item_of_a_positive(
    prepared: Path, schema: Schema, seed: int
) -> None:
    rows = load_columns(prepared, schema, "train")
    fresh = FreshNegatives(rows, schema).rows_of(seed)
    watched = rows.labels[:, 0] == 1
    assert torch.equal(fresh.user, rows.user)
    assert torch.equal(fresh.labels.nan_to_num(-1), rows.labels.nan_to_num(-1))
    assert torch.equal(fresh.item[watched], rows.item[watched])
    changed = (fresh.item != rows.item)[~watched].float().mean()
    assert changed > 0.5  # of 40 items some 20 are free: about 1 - 1/20 differ
    positives = pairs(Columns(*rows.take(watched)))
    assert not positives & pairs(Columns(*fresh.take(~watched)))


def test_every_item_that_is_free_is_as_likely(schema: Schema) -> None:
    """User 0 watched 0 to 9 of 40 items: each of the others in 1/30 of 30,000 draws, 1,000 times
    with a deviation of sqrt(30000 x 1/30 x 29/30) = 31."""
    user, item = [0] * 30_010, [*range(10), *[20] * 30_000]
    rows = columns(user, item, [1] * 10 + [0] * 30_000)
    counts = torch.bincount(FreshNegatives(rows, schema).rows_of(0).item[10:], minlength=40)
    assert counts[:10].eq(0).all()
    assert counts[10:].sub(1000).abs().max() < 4 * 31


def test_who_has_watched_everything_keeps_the_negatives_of_the_log(schema: Schema) -> None:
    rows = columns([0] * 41, [*range(40), 7], [1] * 40 + [0])
    assert FreshNegatives(rows, schema).rows_of(0).item.tolist() == [*range(40), 7]


def loader(prepared: Path, **trainer: int) -> RecDataModule:
    settings = {"data": {"fresh_negatives": True}, "trainer": {"batch_size": 64, **trainer}}
    return RecDataModule(prepared, parse_config(settings))


def items(batches: list[Batch]) -> list[list[int]]:
    return [batch.item.tolist() for batch in batches]


def test_epochs_differ_and_an_epoch_is_the_same_from_any_batch_on(prepared: Path) -> None:
    first, second = (list(loader(prepared).train_batches(epoch)) for epoch in (0, 1))
    assert set(map(tuple, items(first))).isdisjoint(map(tuple, items(second)))
    assert items(list(loader(prepared).train_batches(1, start=3))) == items(second[3:])


def test_two_processes_share_the_rows_that_one_would_have(prepared: Path) -> None:
    alone = list(loader(prepared).train_batches(0))
    halves = [list(loader(prepared).train_batches(0, rank=rank, world=2)) for rank in range(2)]
    together = [torch.cat([a.item, b.item]).tolist() for a, b in zip(*halves, strict=True)]
    assert together == items(alone)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"report": {}}, "got synthetic, where they are in the log"),
        (
            {"command": "prepare table --negative-distribution popularity"},
            "got --negative-distribution popularity",
        ),
    ],
)
def test_negatives_of_another_origin_are_refused(
    prepared: Path, schema: Schema, change: dict[str, object], got: str
) -> None:
    rows = load_columns(prepared, schema, "train")
    with pytest.raises(ConfigError, match=f"drawn uniformly, {got}.*; set it to false"):
        FreshNegatives(rows, replace(schema, **change))  # type: ignore[arg-type]


def test_rows_on_disk_are_refused_before_a_run_folder_is_there(
    prepared: Path, tmp_path: Path
) -> None:
    data = {"fresh_negatives": True, "shuffle_window": 64}
    config = parse_config({"model": TINY_MODEL, "data": data})
    with pytest.raises(ConfigError, match="needs the .* training rows in memory; raise data.max"):
        fit(config, prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()
