"""Context features reach the batches, from memory and from disk, and stay with their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from recsys_moe.config.encoders import MOST_CATEGORIES, chosen_context
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.data.negatives import ResampledNegatives, _Moments
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.data.streaming import StreamBatches, row_bytes, rows_within
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.schema import FeatureColumn, Schema
from recsys_moe.train.loader import RecDataModule
from tests.conftest import TINY_MODEL
from tests.context import CONTEXT, HOUR, PRICE, expected, with_context

KEPT = {"context_dropout": 0.0}


@pytest.fixture(scope="module")
def folder(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_context(prepared, tmp_path_factory.mktemp("context") / "data")


def config(data: dict[str, Any] | None = None, **model: Any) -> Config:
    trainer = {"max_epochs": 2, "batch_size": 64}
    model = {**TINY_MODEL, "context": "all", **model}
    return parse_config({"model": model, "trainer": trainer, "data": data or {}})


def same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one.nan_to_num(-9), other.nan_to_num(-9)))


def test_a_context_stays_with_its_row_in_every_kind_of_batches(folder: Path) -> None:
    schema = Schema.load(folder)
    stored = StoredColumns(folder, schema, "train", CONTEXT)
    columns, draws = stored.load(), {"id_dropout": 0.0, "seed": 0}
    assert len(stored.sizes) > 9
    for batches in (
        TrainBatches(columns, schema, 64, **draws),
        StreamBatches(stored, schema, 64, **draws, window=256),
        EvalBatches(columns, 64),
        EvalBatches(stored, 64),
    ):
        rows = 0
        for batch in batches:
            assert batch.context is not None and batch.context.dtype == torch.float32
            assert same(batch.context, expected(batch.user, batch.item))
            rows += len(batch.context)
        assert rows == schema.rows["train"]


def test_only_what_is_asked_for_is_read(folder: Path) -> None:
    schema = Schema.load(folder)
    assert load_columns(folder, schema, "val").context is None
    columns = load_columns(folder, schema, "val", [PRICE])
    assert columns.context is not None
    assert same(columns.context, expected(columns.user, columns.item)[:, 1:])


def test_a_feature_takes_four_bytes_of_a_row(folder: Path) -> None:
    schema = Schema.load(folder)
    assert row_bytes(schema, context=2) == row_bytes(schema) + 8
    assert rows_within(schema, 1, context=2) == 2**20 // (24 + 8)


def test_hidden_ids_keep_their_context(folder: Path) -> None:
    """Rows of both runs are the same, in the same order; of the second all ids may be hidden."""
    for data in ({"shuffle_buffer": 250}, {}):
        shown, hidden = (
            [*RecDataModule(folder, config({**data, **KEPT, "id_dropout": rate})).train_batches(0)]
            for rate in (0.0, 0.9)
        )
        for one, other in zip(shown, hidden, strict=True):
            assert one.context is not None and other.context is not None
            assert (one.user != other.user).any() and same(one.context, other.context)


@pytest.mark.parametrize("buffer", ["auto", 250])
def test_a_share_of_rows_loses_all_context_or_a_part_of_it(buffer: Any, folder: Path) -> None:
    """Of 0.4 of the rows half lose both features, and the others each at 1/2: a quarter of them
    both, a quarter each alone: 0.2 + 0.05, 0.05, 0.05. Within four standard deviations."""
    data = {"shuffle_buffer": buffer, "id_dropout": 0}
    found, whole = (
        [*RecDataModule(folder, config({**data, "context_dropout": rate})).train_batches(0)]
        for rate in (0.4, 0.0)
    )
    known, lost = [], []
    for one, other in zip(found, whole, strict=True):
        assert one.context is not None and other.context is not None
        for part in ("user", "item", "labels"):
            assert same(getattr(one, part), getattr(other, part))
        assert same(one.context, other.context.where(~one.context.isnan(), torch.nan))
        known.append(~other.context.isnan())
        lost.append(one.context.isnan() & known[-1])
    both_N = torch.cat(known).all(1)
    hour_N, price_N = torch.cat(lost)[both_N].unbind(1)
    shares = [(hour_N & price_N), (hour_N & ~price_N), (price_N & ~hour_N)]
    for share_N, wanted in zip(shares, (0.25, 0.05, 0.05), strict=True):
        deviation = (wanted * (1 - wanted) / len(share_N)) ** 0.5
        assert abs(float(share_N.float().mean()) - wanted) < 4 * deviation


@pytest.mark.parametrize("kind", [TrainBatches, StreamBatches])
def test_what_is_lost_depends_on_the_seed_alone(kind: Any, folder: Path) -> None:
    """Batches from the fifth on, and the shares of two processes, are those of the whole."""
    schema = Schema.load(folder)
    stored = StoredColumns(folder, schema, "train", CONTEXT)
    draws = {"id_dropout": 0.1, "context_dropout": 0.4, "seed": 3}
    rows = stored if kind is StreamBatches else stored.load()
    window = {"window": 256} if kind is StreamBatches else {}
    whole = [*kind(rows, schema, 64, **draws, **window)]
    later = [*kind(rows, schema, 64, **draws, **window, start=5)]
    assert all(same(a.context, b.context) for a, b in zip(whole[5:], later, strict=True))
    if kind is TrainBatches:
        halves = [kind(rows, schema, 32, **draws, rank=rank, world=2) for rank in (0, 1)]
        for one, *parts in zip(whole, *halves, strict=True):
            assert same(one.context, torch.cat([part.context for part in parts]))  # type: ignore


@pytest.mark.parametrize("buffer", ["auto", 250])
@pytest.mark.parametrize("power", [1, 0])
def test_resampled_negatives_keep_the_context_of_a_positive_of_their_user(
    buffer: Any, power: float, folder: Path
) -> None:
    """The context of `expected` depends on user and item: a row's own one, or one of its user."""
    data = {"resample_negatives": True, "user_exponent": power, "shuffle_buffer": buffer}
    schema = Schema.load(folder)
    columns = load_columns(folder, schema, "train", CONTEXT)
    batches = RecDataModule(folder, config({**data, **KEPT, "id_dropout": 0})).train_batches(1)
    assert isinstance(batches, StreamBatches if buffer == 250 else TrainBatches)
    known = {row[:1] + row[2:] for row in listed(columns)}
    before = sorted((user, *context) for user, _, *context in listed(columns))
    after = sorted((user, *context) for b in batches for user, _, *context in listed(b))
    assert (after == before) == (power == 1)
    assert {(*row,) for row in after} <= known


def listed(rows: Batch | Columns) -> Iterator[tuple[Any, ...]]:
    assert rows.context is not None
    columns = (rows.user, rows.item, *rows.context.nan_to_num(-9).unbind(1))
    return zip(*(column.tolist() for column in columns), strict=True)


def test_a_user_gets_each_context_in_proportion_to_the_rows_with_it() -> None:
    """User 1 has three rows at 0 and one at 1: of 4,000 draws a quarter is at 1, within 4 standard
    deviations of sqrt(4000 * 3 / 16) = 27."""
    user = torch.tensor([1, 0, 1, 1, 1], dtype=torch.int32)

    context_PC = torch.tensor([[0.0], [7.0], [0.0], [1.0], [0.0]])
    history_P2 = context_PC.int().expand(-1, 2)
    moments = _Moments(user.long(), {"context": context_PC, "history": history_P2}, 3)
    both = moments.draw(torch.ones(4000, dtype=torch.long), torch.Generator().manual_seed(0))
    drawn = both["context"]
    assert torch.equal(both["history"][:, :1], drawn.int())  # of the same row
    assert abs(int(drawn.sum()) - 1000) < 110 and set(drawn[:, 0].tolist()) == {0.0, 1.0}


def test_data_without_context_draw_the_negatives_they_did(prepared: Path) -> None:
    schema = Schema.load(prepared)
    rows = load_columns(prepared, schema, "train")
    assert ResampledNegatives(rows, schema, 0.75, 0).drawn(rows, 3).context is None


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (HOUR.column, pa.array([5], pa.int32()), "'feature:hour' must be in 0..4"),
        (HOUR.column, pa.array([-1], pa.int32()), "'feature:hour' must be in 0..4"),
        (PRICE.column, pa.array([float("inf")], pa.float32()), "'feature:price' must be finite"),
        (PRICE.column, None, "column 'feature:price' is missing"),
    ],
)
def test_a_split_that_is_not_what_the_schema_says_is_refused(
    column: str, values: pa.Array | None, message: str, prepared: Path, tmp_path: Path
) -> None:
    folder = with_context(prepared, tmp_path / "data")
    part = next((folder / "val").glob("*.parquet"))
    table = pq.read_table(part)
    others = table.drop_columns([column])
    if values is not None:
        changed = pa.concat_arrays([values, table[column].combine_chunks()[1:]])
        others = others.append_column(column, changed)
    pq.write_table(others, part)
    with pytest.raises(DataError, match=rf"part-00000.parquet: {message}; prepare the data again"):
        load_columns(folder, Schema.load(folder), "val", CONTEXT)


CHOICES = {
    "none": ((), None),
    "all": (CONTEXT, None),
    "price": ((PRICE,), None),
    "price,hour": (CONTEXT, None),  # in the order of the data
    "our": ((), "model.context must be of hour, price, got 'our'; did you mean 'hour'"),
}


@pytest.mark.parametrize(("wanted", "found"), CHOICES.items(), ids=CHOICES)
def test_a_model_names_its_context_as_its_features(
    wanted: str, found: tuple[tuple[FeatureColumn, ...], str | None], folder: Path
) -> None:
    schema, (features, message) = Schema.load(folder), found
    if message is None:
        assert chosen_context(config(context=wanted), schema) == features
        return
    with pytest.raises(ConfigError, match=message):
        chosen_context(config(context=wanted), schema)


def test_what_a_model_cannot_read_is_refused(prepared: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="model.context must be none .*got all; prepare .*--cont"):
        chosen_context(config(), Schema.load(prepared))
    for feature, got in (
        (replace(HOUR, kind="multi"), "got 'hour' with multi; list the others"),
        (replace(HOUR, size=MOST_CATEGORIES), "got 'hour' with 16777216 categories"),
    ):
        schema = replace(Schema.load(folder), context_features=(feature, PRICE))
        with pytest.raises(ConfigError, match=got):
            chosen_context(config(), schema)
        assert chosen_context(config(context="price"), schema) == (PRICE,)
    with pytest.raises(ConfigError, match="model.context must be none, all or .*=hour,device"):
        config(context=["hour", "hour"])
