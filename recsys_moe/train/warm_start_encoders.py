"""Warm start with features and bags: the rows that the encoders of a run start from.

A model folder holds the complete vectors of known ids: id, features and bag in one row. The tables
of the new encoders start from the old ones, matched by raw categories and ids; rows of known ids
are the old vectors minus what these encoders compute for the new data.

Axes: N users or items of the new data and one more for the OOV id, R rows of an encoder's table,
L levels of ratings and one more for none, I items and one more for the OOV id, D width.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.artifact.manifest import VOCABULARIES
from recsys_moe.artifact.model_folder import NO_CATEGORIES, Artifact
from recsys_moe.config.encoders import BagKey, bag_levels, chosen_context, chosen_features
from recsys_moe.config.settings import Config
from recsys_moe.data.columns import reading_parquet
from recsys_moe.data.entries import line_of_levels, matched_levels, table_rows
from recsys_moe.errors import DataError
from recsys_moe.model.encoders.features import Features
from recsys_moe.model.recommender import ENCODERS, Recommender
from recsys_moe.schema import FeatureColumn, Schema

logger = logging.getLogger("recsys_moe.fit")


class FeatureRows(NamedTuple):
    """Rows of the old table of features for those of the new one. All (R,)"""

    place: Tensor
    """Row of the old table; its length for a new category."""
    scale: Tensor
    """New by old standard deviation of numbers; else 1."""
    shift: Tensor
    """New minus old mean of numbers, in old deviations; else 0."""


class BagRows(NamedTuple):
    """Rows of the old table of bags for those of the new one: low + weight (high - low). (R,)"""

    low: Tensor
    """Row of the old table; its length for a new neighbour."""
    high: Tensor
    weight: Tensor


class Matched(NamedTuple):
    """Rows that the encoders of a run start from."""

    features: dict[str, FeatureRows]
    """Of `user`, `item` and `context`, where they have any."""
    bags: dict[str, BagRows]
    """Of `item_bag` and `user_bag`, where both models have it; others start at 0."""


class _Block(NamedTuple):
    """A feature, its categories by index, and its first row of the table."""

    feature: FeatureColumn
    categories: pa.Array
    start: int


def match(
    old: Artifact, config: Config, schema: Schema, *, data: Path, places: tuple[Tensor, Tensor]
) -> Matched:
    """`places`: row of the old model for each user and each item of `data`. Raises DataError."""
    before, now = _chosen(old.config, old.schema), _chosen(config, schema)
    categories = _categories(data / VOCABULARIES)
    features, said = {}, []
    for entity in (entity for entity, chosen in now.items() if chosen):
        known, end = _blocks(before[entity], entity, old.categories), table_rows(before[entity])
        blocks = _blocks(now[entity], entity, categories)
        parts = {name: _rows(one, known.get(name), end) for name, one in blocks.items()}
        said += [f"{name}: {_summary(part, end)}" for name, part in parts.items()]
        features[entity] = FeatureRows(*map(torch.cat, zip(*parts.values(), strict=True)))
    if said:
        logger.info("features: %s", "; ".join(said))
    neighbours: dict[BagKey, Tensor] = {"item_bag": places[1], "user_bag": places[0]}
    rows = {k: _bag_rows(old, config, schema, key=k, place_N=n) for k, n in neighbours.items()}
    return Matched(features, {key: one for key, one in rows.items() if one is not None})


def _chosen(config: Config, schema: Schema) -> dict[str, tuple[FeatureColumn, ...]]:
    return {**chosen_features(config, schema), "context": chosen_context(config, schema)}


def _categories(path: Path) -> pa.Table:
    if not path.is_file():
        return NO_CATEGORIES
    with reading_parquet(path):
        return pq.read_table(path, columns=NO_CATEGORIES.column_names)


def _blocks(
    features: tuple[FeatureColumn, ...], entity: str, categories: pa.Table
) -> dict[str, _Block]:
    found, start = {}, 0
    of_entity = categories.filter(pc.equal(categories["side"], entity))
    for one in features:
        rows = of_entity.filter(pc.equal(of_entity["feature"], one.name)).sort_by("index")
        if len(rows) != one.size:
            raise DataError(
                f"{VOCABULARIES} must have the {one.size} categories of {one.name!r}, got "
                f"{len(rows)}; prepare the data again"
            )
        found[one.name] = _Block(one, rows["value"].combine_chunks(), start)
        start += table_rows([one])
    return found


def _rows(now: _Block, old: _Block | None, end: int) -> FeatureRows:
    """Rows of one feature. Raises DataError where its kind changed."""
    size = table_rows([now.feature])
    if old is None:
        return FeatureRows(torch.full((size,), end), torch.ones(size), torch.zeros(size))
    one, was = now.feature, old.feature
    if one.kind != was.kind:
        raise DataError(
            f"feature {one.name!r} must be {was.kind}, as in the model, got {one.kind}; "
            "prepare it with that kind or under another name, or leave it out of model.features"
        )
    if one.kind == "numeric":
        numbers = old.start, one.std / was.std, (one.mean - was.mean) / was.std
        return FeatureRows(*(torch.tensor([number]) for number in numbers))
    index = pc.index_in(now.categories, value_set=old.categories).to_pylist()
    place = [end if i is None else old.start + i for i in index]
    oov = old.start + was.size
    return FeatureRows(torch.tensor([*place, oov]), torch.ones(size), torch.zeros(size))


def _summary(rows: FeatureRows, end: int) -> str:
    known = int((rows.place < end).sum())
    if not known:
        return "new"
    if len(rows.place) == 1:
        return "known"
    return f"{known - 1} known categories, {len(rows.place) - known} new"


def _bag_rows(
    old: Artifact, config: Config, schema: Schema, *, key: BagKey, place_N: Tensor
) -> BagRows | None:
    """`place_N`: row of the old model for each neighbour, and for the OOV id."""
    if "none" in (getattr(c.model, key) for c in (old.config, config)):
        return None
    low_L, high_L, weight_L = _on_levels(old, config, schema, bag_levels(config, schema, key))
    known, new = int(place_N[-1]), len(old.encoders[f"{key}.table_RW"])

    def rows(level_L: Tensor) -> Tensor:
        row_LN = level_L[:, None] * known + place_N[:-1]
        return row_LN.where(place_N[:-1] < known, new).flatten()

    weight_LN = weight_L[:, None].expand(-1, len(place_N) - 1)
    return BagRows(rows(low_L), rows(high_L), weight_LN.flatten())


def _on_levels(
    old: Artifact, config: Config, schema: Schema, levels: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Two levels of the old model for each new one, and its place between them. (L,)

    With linear ratings: between the lowest and the highest; else the nearest level.
    """
    if levels is None:
        only_L = torch.zeros(1, dtype=torch.int64)
        return only_L, only_L, torch.zeros(1)
    if config.model.bag_ratings != "linear":
        near_L = matched_levels(old.schema, schema, levels)
        return near_L, near_L, torch.zeros(levels + 1)
    line_L = line_of_levels(old.schema, schema, levels)
    unrated = torch.tensor(levels)
    low_L = torch.where(line_L.isnan(), unrated, 0)
    return low_L, torch.where(line_L.isnan(), unrated, levels - 1), line_L.nan_to_num(0)


@torch.no_grad()
def init_encoders(
    model: Recommender, matched: Matched, old: Artifact, places: tuple[Tensor, Tensor]
) -> None:
    """Subtract what the encoders compute from the rows of ids, which hold complete vectors.

    `places`: row of the old model for each user and each item. A new id is then an OOV id of the
    old model with the same features, corrected for means of numbers (but for those of the context,
    which no row of ids holds). OOV rows stay.
    """
    encoders = model.encoders
    assert encoders is not None
    tables = model.user_embedding.weight, model.item_embedding.weight
    nothing = [
        table.new_zeros(len(place_N), table.shape[1])
        for table, place_N in zip(tables, places, strict=True)
    ]
    moved = [torch.zeros_like(table) for table in nothing]
    for n, (entity, part) in enumerate((("user", encoders.users), ("item", encoders.items))):
        if part is not None:
            moved[n] += _init_features(part, matched.features[entity], old, f"{entity}s.table_RD")
    if "context" in matched.features:
        rows = matched.features["context"]
        table_RD = encoders.context.table_RD
        was_RD = old.model.state_dict().get(f"{ENCODERS}context.table_RD", table_RD[:0])
        table_RD.copy_(_row_of(was_RD, rows.place) * rows.scale[:, None])
    for key, (low_R, high_R, weight_R) in matched.bags.items():
        low_RW, high_RW = (_row_of(old.encoders[f"{key}.table_RW"], r_R) for r_R in (low_R, high_R))
        table_RW = low_RW.lerp(high_RW, weight_R[:, None])
        getattr(encoders, key).init_from(table_RW, old.encoders[f"{key}.kernel_DW"])
    said = encoders.materialize(*nothing)
    for table_ND, place_N, said_ND, moved_ND in zip(tables, places, said, moved, strict=True):
        is_known_N = place_N < place_N[-1]
        added_ND = torch.where(is_known_N[:, None], -said_ND, moved_ND)
        table_ND += rows_of_table(added_ND, len(table_ND) - 1)


def _init_features(part: Features, rows: FeatureRows, old: Artifact, name: str) -> Tensor:
    """What the means of numbers move the vector of each user or item by. (N, D)"""
    was_RD = _row_of(old.encoders.get(name, part.table_RD[:0]), rows.place)
    part.table_RD.copy_(was_RD * rows.scale[:, None])
    bags = part.row_P, was_RD * rows.shift[:, None], part.first_N[:-1].int()
    return F.embedding_bag(*bags, mode="sum")


def rows_of_table(values_N: Tensor, trained: int) -> Tensor:
    """Of values of all ids and the OOV id those of the first `trained` and of the OOV id."""
    return torch.cat([values_N[:trained], values_N[-1:]])


def _row_of(table_RD: Tensor, place_R: Tensor) -> Tensor:
    """Rows of a table; 0 for an index past its end."""
    return F.pad(table_RD, (0, 0, 0, 1))[place_R]
