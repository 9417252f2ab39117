"""Gives the encoders of a model their entries, and materialises them after training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from recsys_moe.artifact.bags import ENCODER, PREFIX
from recsys_moe.artifact.events import last_events
from recsys_moe.config.build import build_model
from recsys_moe.config.encoders import bag_levels, chosen_features
from recsys_moe.config.settings import Config
from recsys_moe.data.columns import Rows
from recsys_moe.data.entries import bag_entries, feature_entries
from recsys_moe.data.histories import read_log
from recsys_moe.data.item_past import ItemPast
from recsys_moe.model.encoders.base import Encoders
from recsys_moe.model.encoders.item_bag import ItemBag
from recsys_moe.model.encoders.moment import mean_and_std
from recsys_moe.model.recommender import Recommender
from recsys_moe.schema import SPLITS, Schema


def set_encoder_entries(
    encoders: Encoders | None, config: Config, schema: Schema, *, folder: Path, rows: Rows
) -> None:
    """Set the features in a prepared folder and the bags of its training rows. Raises DataError."""
    if encoders is None:
        return
    chosen = chosen_features(config, schema)
    for entity, size in (("user", schema.user.size), ("item", schema.item.size)):
        part = encoders.users if entity == "user" else encoders.items
        if part is not None:
            part.set_entries(*feature_entries(folder / f"{entity}s.parquet", chosen[entity], size))
    if encoders.item_bag is not None:
        encoders.item_bag.set_entries(*bag_entries(rows, schema, bag_levels(config, schema)))
    if encoders.user_bag is not None:
        levels = bag_levels(config, schema, "user_bag")
        encoders.user_bag.set_entries(*bag_entries(rows, schema, levels, of_items=True))


def known_events(config: Config, folder: Path, schema: Schema) -> dict[str, Tensor]:
    """What a model folder keeps: the last events of users in the training and validation rows, all
    that its evaluation on the test rows begins from; {} for a model that reads none."""
    if not config.model.reads_events:
        return {}
    return last_events(read_log(folder, schema, SPLITS[:2]), config.model.sequence_length)


def known_items(config: Config, folder: Path, schema: Schema) -> dict[str, Tensor]:
    """What a model folder keeps of items at the end of the same rows (see `Known`); {} for a model
    that reads neither their age nor their popularity."""
    if not config.model.reads_items:
        return {}
    log = read_log(folder, schema, SPLITS[:2])
    past = ItemPast(log, schema.item.size, config.model.popularity_half_life)
    return past.known()._asdict()


def standardise(model: Recommender, rows: Rows) -> None:
    """Give what reads the time of rows the means and deviations of the training rows."""
    moment = None if model.encoders is None else model.encoders.moment
    for reader in (moment, model.trend):
        if reader is not None:
            moments = (one for chunk in rows.chunks() if (one := chunk.moment()) is not None)
            reader.standardise(*mean_and_std(map(reader.values, moments)))


def bag_rows(model: Recommender) -> dict[str, Tensor]:
    """Rows of the tables of bags that each user and item has: see artifact/bags.py."""
    found: dict[str, Tensor] = {}
    for entity, key in ENCODER.items():
        bag: ItemBag | None = getattr(model.encoders, key, None)
        if bag is not None:
            found |= {f"{PREFIX[entity]}first": bag.first_N, f"{PREFIX[entity]}row": bag.row_P}
    return found


@torch.no_grad()
def finish(
    model: Recommender, config: Config, schema: Schema, trained: tuple[Tensor, Tensor]
) -> tuple[Recommender, dict[str, Tensor]]:
    """A model with complete vectors of the users and items in the data, and what new ones need.

    `trained`: which users and items have a training row; the embeddings of the others are replaced,
    in `model` too, by that of the OOV id.
    """
    if model.hides_users:
        trained = torch.zeros_like(trained[0]), trained[1]
    for table, is_trained_N in zip(model.tables, trained, strict=True):
        known = table.num_embeddings - 1
        table.weight[:-1][~is_trained_N[:known]] = table.weight[-1].clone()
    if model.encoders is None and not model.shape.is_open:
        return model, {}
    result = build_model(config, schema, finished=True)
    state, encoders = model.materialize(result.state_dict())
    result.load_state_dict(state)
    return result, encoders
