"""Warm start: a run whose weights start from those of another model.

Raw ids are matched. Axes: U users and I items of the new data, each with one more for the OOV id.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.artifact.manifest import MANIFEST, find_artifact
from recsys_moe.artifact.model_folder import Artifact, artifact_config, load_artifact
from recsys_moe.config.files import merge, model_name, router_name, router_section
from recsys_moe.config.renamed import with_new_names
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import DataError
from recsys_moe.files import sha256_file
from recsys_moe.model.recommender import ENCODERS, Recommender
from recsys_moe.schema import Feature, Schema
from recsys_moe.train.warm_start_checks import check_model, check_tasks, check_units, must_stay
from recsys_moe.train.warm_start_encoders import Matched, init_encoders, match, rows_of_table

logger = logging.getLogger("recsys_moe.fit")

ARROW = {"int64": pa.int64(), "string": pa.string()}


class Start(NamedTuple):
    """The model of a warm start, and its rows for the new data."""

    folder: Path
    artifact: Artifact
    user_U: Tensor
    """Row of the model for each user of the new data, those out of vocabulary included; the OOV row
    for a new user."""
    item_I: Tensor
    matched: Matched | None
    """Rows that the encoders of the run start from; None without encoders."""

    @property
    def record(self) -> dict[str, str]:
        """For data.lock.json; the manifest holds the hash of every other file."""
        manifest = self.folder / MANIFEST
        return {"folder": str(self.folder.resolve()), MANIFEST: sha256_file(manifest)}


def start_config(raw: dict[str, Any], path: str | Path | None) -> Config:
    """`raw` sections over the configuration of the model at `path`, or over the defaults.

    Raises ConfigError where `raw` asks for another model, DataError where `path` has none.
    """
    raw = with_new_names(raw)
    if path is None:
        return parse_config(raw)
    before = artifact_config(Path(path))
    router = before.router and before.router.name
    asked = {"model.name": model_name(raw), "model.router.name": router_name(raw)}
    for key, name in (("model.name", before.model.name), ("model.router.name", router)):
        if asked[key] not in (None, name):  # before its keys are merged with those of another
            raise must_stay(path, key, name, asked[key])
    if section := router_section(raw):
        raw = merge(raw, {"model": {"router": None}})
        raw = merge(raw, {"model": {"router": section}})
    config = parse_config(merge(before.model_dump(mode="json"), raw))
    check_model(before, config, path)
    return config


def open_start(path: str | Path | None, config: Config, schema: Schema, data: Path) -> Start | None:
    """The model at `path`, checked against `data`; None for None. Raises ConfigError, DataError."""
    if path is None:
        return None
    folder = find_artifact(Path(path))
    artifact = load_artifact(folder)
    check_model(artifact.config, config, path)
    check_tasks(artifact.schema, schema, path)
    check_units(artifact.schema, schema, path)
    user_U, item_I = (_places(artifact, schema, s, path=path, data=data) for s in ("user", "item"))
    trained = schema.user.trained, schema.item.trained
    places = [rows_of_table(*one) for one in zip((user_U, item_I), trained, strict=True)]
    _log_known_ids(artifact.schema, places, path)
    matched = None
    if config.model.has_encoders or config.model.context != "none":
        try:
            matched = match(artifact, config, schema, data=data, places=(user_U, item_I))
        except DataError as error:
            raise DataError(f"--init-from {path}: {error}") from None
    return Start(folder, artifact, user_U, item_I, matched)


def _places(
    artifact: Artifact, schema: Schema, entity: str, *, path: str | Path, data: Path
) -> Tensor:
    """Row of the model for each user (or item) of the data, and for the OOV id. (U,) int64"""
    before: Feature = getattr(artifact.schema, entity)
    now: Feature = getattr(schema, entity)
    if before.id_type != now.id_type:
        raise DataError(
            f"--init-from {path}: {entity} ids of {data} must be {before.id_type}, as in the "
            f"model, got {now.id_type}; write them the same way and prepare the data again"
        )
    table = artifact.users if entity == "user" else artifact.items
    known = table[before.name].cast(ARROW[before.id_type]).combine_chunks()
    place = pc.index_in(_ids(data / f"{entity}s.parquet", now), value_set=known)
    place_U = torch.tensor(place.fill_null(len(known)).to_numpy()).long()
    return torch.cat([place_U, torch.tensor([len(known)])])


def _ids(path: Path, feature: Feature) -> pa.ChunkedArray:
    try:
        column = pq.read_table(path, columns=[feature.name])[feature.name]
        ids = column.cast(ARROW[feature.id_type])
    except (OSError, LookupError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]}; prepare the data again") from None
    if len(ids) != feature.size:
        raise DataError(f"{path} has {len(ids)} ids, not {feature.size}; prepare the data again")
    return ids


def _log_known_ids(old: Schema, places: list[Tensor], path: str | Path) -> None:
    """Raises DataError where no id is known."""
    said, known = [], 0
    for name, trained, place_U in zip(
        ("users", "items"), (old.user.trained, old.item.trained), places, strict=True
    ):
        both = int((place_U < trained).sum())
        known += both
        new, left = len(place_U) - 1 - both, trained - both
        said.append(f"{both} known {name}, {new} new, {left} dropped")
    if not known:
        raise DataError(
            f"--init-from {path}: the model knows no user and no item of the data; "
            "prepare data with the same ids, or train from scratch without --init-from"
        )
    logger.info("starting from %s: %s", path, "; ".join(said))


def copy_units(model: Recommender, start: Start) -> None:
    """Give `model` the units of the old one, in which its biases are fitted."""
    if model.biases is not None:
        old = start.artifact.model.biases
        assert old is not None
        model.biases.shift_T.copy_(old.shift_T)
        model.biases.scale_T.copy_(old.scale_T)


def load_weights(model: Recommender, start: Start) -> None:
    """Give `model` the weights of the old one. Raises DataError where they do not fit."""
    try:
        model.load_state_dict(_weights(model, start))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"--init-from {start.folder}: its weights do not fit the model of these data: "
            f"{reason}; train from scratch without --init-from"
        ) from None
    if start.matched is not None:
        init_encoders(model, start.matched, start.artifact, (start.user_U, start.item_I))


def _weights(model: Recommender, start: Start) -> dict[str, Tensor]:
    """The state of `start` with the rows that `model` needs."""
    old, own = start.artifact.model.state_dict(), model.state_dict()
    new = {n: values for n, values in own.items() if n.startswith(ENCODERS) and not _stays(n)}
    state = {n: values for n, values in old.items() if not n.startswith(ENCODERS) or _stays(n)}
    state |= new
    tables = {"user_embedding": start.user_U, "item_embedding": start.item_I}
    for name, place_U in tables.items():
        table = f"{name}.weight"
        state[table] = old[table][rows_of_table(place_U, len(own[table]) - 1)]
    for name, (place_U, trained) in _fixed(model, start).items():
        place_U = rows_of_table(place_U, len(own[name]) - 1)
        is_known_U = place_U < trained
        known = is_known_U.view(-1, *[1] * (old[name].dim() - 1))
        state[name] = torch.where(known, old[name][place_U], own[name])
    return state


def _stays(name: str) -> bool:
    """Is it a weight of an encoder that knows no ids, features or categories?"""
    return name.startswith((f"{ENCODERS}sequence.", f"{ENCODERS}moment."))


def _fixed(model: Recommender, start: Start) -> dict[str, tuple[Tensor, int]]:
    """By name, the tensors with a fixed entry for each user or item: their rows of the old model,
    of which so many are of ids that it was trained on."""
    schema, names = start.artifact.schema, dict[str, tuple[Tensor, int]]()
    users, items = (start.user_U, schema.user.trained), (start.item_I, schema.item.trained)
    if model.biases is not None:
        names |= {"biases.user_UT": users, "biases.item_IT": items}
    for task, router in enumerate(model.routers):
        for name in router.per_user:
            names[f"moe.routers.{task}.{name}"] = users
    return names
