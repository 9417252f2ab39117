"""Negatives that are drawn anew: which rows, among which items, by which law."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.data.negatives import ResampledNegatives
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import kind_of
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.losses import shifted
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="module")
def schema(prepared: Path) -> Schema:
    return Schema.load(prepared)


def columns(user: list[int], item: list[int], positive: list[int]) -> Columns:
    """Positive rows have a rating of 3 too, others no label but 0."""
    labels = [[float(one), 3.0 if one else torch.nan] for one in positive]
    indices = [torch.tensor(values, dtype=torch.int32) for values in (user, item)]
    return Columns(*indices, torch.tensor(labels))


def pairs(rows: Columns) -> set[tuple[int, int]]:
    return set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))


@given(seed=st.integers(0, 2**63 - 1), user_power=st.sampled_from([1.0, 0.5, 0.0, -1.0]))
def test_only_drawn_rows_change_and_never_to_an_item_of_a_positive(
    prepared: Path, schema: Schema, seed: int, user_power: float
) -> None:
    rows = load_columns(prepared, schema, "train")
    fresh = ResampledNegatives(rows, schema, user_power=user_power).drawn(rows, seed)
    is_positive = rows.labels[:, 0] == 1
    assert torch.equal(fresh.user, rows.user) == (user_power == 1)
    assert torch.equal(fresh.user[is_positive], rows.user[is_positive])
    assert torch.equal(fresh.labels.nan_to_num(-1), rows.labels.nan_to_num(-1))
    assert torch.equal(fresh.item[is_positive], rows.item[is_positive])
    changed = (fresh.item != rows.item)[~is_positive].float().mean()
    assert changed > 0.5  # of 40 items some 20 are free: about 1 - 1/20 differ
    positives = pairs(Columns(*rows.take(is_positive)))
    assert not positives & pairs(Columns(*fresh.take(~is_positive)))


def test_a_rating_of_0_without_another_label_is_no_drawn_negative(schema: Schema) -> None:
    """Of the first binary task alone are negatives drawn."""
    rows = columns([0, 0, 0], [0, 1, 2], [1, 0, 0])
    rows.labels[2] = torch.tensor([torch.nan, 0.0])
    made = ResampledNegatives(rows, schema)
    assert made._is_drawn(rows).tolist() == [False, True, False]
    assert made.drawn(rows, 0).item[2] == 2


def test_every_item_that_is_free_is_as_likely(schema: Schema) -> None:
    """User 0 has positives 0 to 9 of 40 items: each other item in 1/30 of 30,000 draws, 1,000 times
    with a deviation of sqrt(30000 x 1/30 x 29/30) = 31."""
    user, item = [0] * 30_010, [*range(10), *[20] * 30_000]
    rows = columns(user, item, [1] * 10 + [0] * 30_000)
    counts = torch.bincount(ResampledNegatives(rows, schema).drawn(rows, 0).item[10:], minlength=40)
    assert counts[:10].eq(0).all()
    assert counts[10:].sub(1000).abs().max() < 4 * 31


def test_a_user_with_all_items_keeps_the_negatives_of_the_log(schema: Schema) -> None:
    rows = columns([0] * 41, [*range(40), 7], [1] * 40 + [0])
    assert ResampledNegatives(rows, schema).drawn(rows, 0).item.tolist() == [*range(40), 7]


@pytest.mark.parametrize("user_power", [1.0, 0.0, -1.0])
def test_a_row_that_finds_no_free_item_keeps_its_user_too(
    schema: Schema, user_power: float
) -> None:
    """User 0 has all items but 39, and user 1 all 40, which has a drawn row nevertheless."""
    users = [*[0] * 39, *[1] * 40, 0, 1]
    rows = columns(users, [*range(39), *range(40), 39, 7], [1] * 79 + [0, 0])
    for seed in range(20):
        fresh = ResampledNegatives(rows, schema, user_power=user_power).drawn(rows, seed)
        found = list(zip(fresh.user.tolist()[79:], fresh.item.tolist()[79:], strict=True))
        assert found[0] == (0, 39) and found[1] in {(0, 39), (1, 7)}


def shared(schema: Schema, user_power: float, power: float = 0.0) -> Columns:
    """Users 0, 1, 2 with 16,000, 4,000 and 0 drawn rows; each has one positive of 40 items."""
    users = [0, 1, 2, *[0] * 16_000, *[1] * 4_000]
    rows = columns(users, [3, 3, 4, *[9] * 20_000], [1] * 3 + [0] * 20_000)
    return ResampledNegatives(rows, schema, power, user_power).drawn(rows, 0)


@pytest.mark.parametrize(
    ("user_power", "expected"),
    [
        (1.0, [16_000, 4_000, 0]),
        (0.5, [13_333, 6_667, 0]),  # sqrt(16) : sqrt(4) = 2 : 1
        (0.0, [10_000, 10_000, 0]),
        (-1.0, [4_000, 16_000, 0]),  # 1/16 : 1/4
    ],
)
def test_users_get_negatives_by_the_power_of_those_they_had(
    schema: Schema, user_power: float, expected: list[int]
) -> None:
    counts = torch.bincount(shared(schema, user_power).user[3:], minlength=3)
    assert counts.sum() == 20_000
    # A deviation of sqrt(20000 p (1 - p)) <= 71; none for power 1, which draws no users.
    most = 0 if user_power == 1 else 4 * 71
    assert (counts - torch.tensor(expected)).abs().max() <= most


def test_an_offset_tells_how_many_times_as_many_negatives_a_user_gets(schema: Schema) -> None:
    """Power 0: 10,000 each, in the place of 16,000 and 4,000; all rows of a user, its positive
    included. User 2 has no negatives, before or after, and nothing to correct."""
    rows = shared(schema, 0.0)
    assert rows.offset is not None
    expected = torch.tensor([10 / 16, 10 / 4, 1]).log()[rows.user.long()]
    assert torch.allclose(rows.offset[:, 0], expected)
    assert rows.offset[:, 1].eq(0).all()


def test_both_powers_add_their_offsets(schema: Schema) -> None:
    both = shared(schema, 0.0, 0.75)
    by_item = ResampledNegatives(replace(both, offset=None), schema, 0.75)
    assert both.offset is not None
    of_user = torch.tensor([10 / 16, 10 / 4, 1]).log()[both.user.long()]
    of_item = by_item._offsets(both)
    assert of_item is not None
    assert torch.allclose(both.offset[:, 0], of_item[:, 0] + of_user, atol=1e-6)


def popular(schema: Schema, power: float) -> Columns:
    """Users 1 to 3 have item 30, user 1 also 31; user 0, with positives 0 to 29, has 30,000 drawn
    rows for the ten items that are left."""
    users = [*[0] * 30, 1, 2, 3, 1, *[0] * 30_000]
    rows = columns(users, [*range(30), 30, 30, 30, 31, *[35] * 30_000], [1] * 34 + [0] * 30_000)
    return ResampledNegatives(rows, schema, power).drawn(rows, 0)


def test_popular_items_are_drawn_more_by_the_power_of_their_rows(schema: Schema) -> None:
    """Items 30 and 31 have 3 and 1 rows, the eight others none: sqrt(4) : sqrt(2) : 1."""
    counts = torch.bincount(popular(schema, 0.5).item[34:], minlength=40)[30:]
    expected = torch.tensor([2, 2**0.5, *[1] * 8]) / (10 + 2**0.5) * 30_000
    assert (counts - expected).abs().max() < 4 * 30_000**0.5 * 0.4  # sqrt(n p (1 - p)), p <= 1/6


def test_the_best_logits_less_their_offsets_are_those_of_uniform_negatives(schema: Schema) -> None:
    """One user with p(i) of the positives: with as many negatives by the law q the best logit is
    log p(i)/q(i), and log p(i)/q0 with uniform ones: they differ by log q(i)/q0, the offset."""
    rows = popular(schema, 0.75)
    assert rows.offset is not None
    rate = torch.tensor([4.0, 2, *[1] * 8]) ** 0.75
    offset_by_item = dict(zip(rows.item[34:].tolist(), rows.offset[34:, 0].tolist(), strict=True))
    found = torch.tensor([offset_by_item[item] for item in range(30, 40)])
    assert torch.allclose(found, (rate / rate.sum() * 10).log(), atol=1e-6)


def test_the_loss_of_a_step_sees_logits_less_their_offsets(prepared: Path) -> None:
    batches = loader(prepared, data={"popularity_exponent": 0.75}).train_batches(0)
    batch = next(iter(batches))
    assert batch.offset is not None and batch.offset.shape == batch.labels.shape
    module = RecModule(
        config(data={"popularity_exponent": 0.75}).model_dump(), batches.schema.to_json()
    )
    module.eval()
    output = module.model(batch.request)
    kinds = [kind_of(task) for task in batches.schema.tasks]
    seen = shifted(output, batch, kinds)
    assert torch.equal(seen.logits_BT, output.logits_BT - batch.offset)
    assert shifted(output, batch._replace(offset=None), kinds) is output


@pytest.mark.parametrize(("name", "idle"), [("popularity_exponent", 0), ("user_exponent", 1)])
def test_a_power_without_resampled_negatives_is_refused(name: str, idle: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name} .*{idle} .*got 0.75"):
        parse_config({"data": {name: 0.75}})


def config(data: dict[str, float] | None = None) -> Config:
    return parse_config(
        {
            "model": TINY_MODEL,
            "data": {"resample_negatives": True, **(data or {})},
            "trainer": {"batch_size": 64},
        }
    )


def loader(prepared: Path, data: dict[str, float] | None = None) -> RecDataModule:
    return RecDataModule(prepared, config(data))


def items(batches: list[Batch]) -> list[list[int]]:
    return [batch.item.tolist() for batch in batches]


def test_epochs_differ_and_an_epoch_is_the_same_from_any_batch_on(prepared: Path) -> None:
    first, second = (list(loader(prepared).train_batches(epoch)) for epoch in (0, 1))
    assert set(map(tuple, items(first))).isdisjoint(map(tuple, items(second)))
    assert items(list(loader(prepared).train_batches(1, start=3))) == items(second[3:])


def listed(rows: Batch | Columns) -> list[tuple[int, int, float]]:
    """User, item and the offset of the first task."""
    assert rows.offset is not None
    return list(
        zip(rows.user.tolist(), rows.item.tolist(), rows.offset[:, 0].tolist(), strict=True)
    )


@pytest.mark.parametrize("changed", ["popularity_exponent", "user_exponent"])
def test_an_epoch_draws_by_the_powers_of_the_configuration(prepared: Path, changed: str) -> None:
    powers = {"popularity_exponent": 0.0, "user_exponent": 1.0, changed: 0.5}
    made = loader(prepared, {**powers, "id_dropout": 0})
    rows = made.rows("train")
    assert isinstance(rows, Columns)
    drawn = ResampledNegatives(rows, made.schema, *powers.values())
    expected = drawn.drawn(rows, stream_seed(0, "negatives", 0))
    found = [row for batch in made.train_batches(0) for row in listed(batch)]
    assert sorted(found) == sorted(listed(expected))


def test_two_processes_share_the_rows_that_one_would_have(prepared: Path) -> None:
    alone = list(loader(prepared).train_batches(0))
    halves = [list(loader(prepared).train_batches(0, rank=rank, world=2)) for rank in range(2)]
    together = [torch.cat([a.item, b.item]).tolist() for a, b in zip(*halves, strict=True)]
    assert together == items(alone)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"negatives": None}, "got synthetic, .*in the log"),
        (
            {"report": {"missing_negatives": 0, "logged_negatives": 7}},
            "got synthetic, .*7 rows",
        ),
        (
            {"negatives": "popularity"},
            "got --negative-distribution popularity",
        ),
    ],
)
def test_negatives_of_another_origin_are_refused(
    prepared: Path, schema: Schema, change: dict[str, object], got: str
) -> None:
    rows = load_columns(prepared, schema, "train")
    with pytest.raises(ConfigError, match=f"data.resample_negatives=true .*{got}.*false"):
        ResampledNegatives(rows, replace(schema, **change))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def parts(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared folder, with its training rows in row groups of 100."""
    folder = tmp_path_factory.mktemp("parts") / "data"
    shutil.copytree(prepared, folder)
    train = pq.read_table(folder / "train")
    for part in (folder / "train").glob("*"):
        part.unlink()
    pq.write_table(train, folder / "train" / "part-00000.parquet", row_group_size=100)
    return folder


@pytest.mark.parametrize("user_power", [1.0, 0.0])
def test_rows_on_disk_get_the_negatives_that_rows_in_memory_would_by_the_row_group(
    parts: Path, schema: Schema, user_power: float
) -> None:
    """The naive twin: what is counted over all rows in memory, and each row group drawn alone."""
    stored, powers = StoredColumns(parts, schema, "train"), (0.75, user_power)
    fresh = ResampledNegatives(stored, schema, *powers).rows_of(7)
    naive = ResampledNegatives(stored.load(), schema, *powers)
    assert isinstance(fresh, StoredColumns) and len(fresh.sizes) > 9
    for number in (3, 0, 3):  # in any order, and again
        found = fresh.group(number)
        expected = naive.drawn(stored.group(number), stream_seed(7, "group", number))
        assert listed(found) == listed(expected)
        assert not torch.equal(found.item, stored.group(number).item)
    whole = fresh.load()
    assert listed(whole) == [row for chunk in fresh.chunks() for row in listed(chunk)]
    drawn = ~(whole.labels[:, 0] == 1)
    assert not pairs(Columns(*whole.take(~drawn))) & pairs(Columns(*whole.take(drawn)))


def test_batches_of_rows_on_disk_are_those_of_their_rows_with_the_negatives_of_the_epoch(
    parts: Path, schema: Schema
) -> None:
    """On one process and on two, over windows that share row groups, and from any batch on."""
    asked = {"shuffle_buffer": 250, "popularity_exponent": 0.75, "user_exponent": 0}
    made = loader(parts, {**asked, "id_dropout": 0})
    fresh = ResampledNegatives(StoredColumns(parts, schema, "train"), schema, 0.75, 0)
    drawn = [fresh.rows_of(stream_seed(0, "negatives", epoch)) for epoch in (0, 1)]
    expected = [sorted(row for chunk in rows.chunks() for row in listed(chunk)) for rows in drawn]
    assert expected[0] != expected[1]
    for epoch, world in ((0, 1), (1, 1), (1, 2)):
        shares = [made.train_batches(epoch, rank=rank, world=world) for rank in range(world)]
        found = [row for share in shares for batch in share for row in listed(batch)]
        assert sorted(found) == expected[epoch]
    later = [listed(batch) for batch in made.train_batches(1, start=5)]
    assert later == [listed(batch) for batch in made.train_batches(1)][5:]
