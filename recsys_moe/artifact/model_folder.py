"""The self-contained model folder: weights, vocabularies, schema, configuration, metric card.

Loads without pickle, Lightning and the training data. Errors name the file.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recsys_moe.artifact import calibration
from recsys_moe.artifact.bags import load_history
from recsys_moe.artifact.calibration import Calibrations
from recsys_moe.artifact.events import load_events, load_items
from recsys_moe.artifact.manifest import (
    ENCODERS,
    EVENTS,
    FILES,
    HISTORY,
    ITEMS,
    MANIFEST,
    VOCABULARIES,
    check_files,
    find_artifact,
    manifest_of,
    version_of,
)
from recsys_moe.artifact.reading import damaged, load_ids, load_seen, reading_model, whole
from recsys_moe.config.build import build_model
from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.item_past import Known
from recsys_moe.files import read_object, write_json
from recsys_moe.folders import replacing_folder
from recsys_moe.model.old_names import with_later_parts, with_new_parts
from recsys_moe.model.recommender import Recommender
from recsys_moe.schema import SCHEMA_FILE, ConfigError, DataError, Schema

NO_CATEGORIES = pa.table(
    {name: pa.array([], pa.string()) for name in ("side", "feature", "value")}
    | {"index": pa.array([], pa.int32())}
)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Everything needed to score raw ids."""

    model: Recommender
    schema: Schema
    config: Config
    users: pa.Table
    items: pa.Table
    seen: dict[str, torch.Tensor]
    """Positive training items as `offsets` (users + 1) and `items`: user u has
    items[offsets[u]:offsets[u + 1]]. `trained_user`, `trained_item`: which have a training row."""
    card: dict[str, Any]
    calibration: Calibrations
    """By task name; tasks without a calibrated probability are left out."""
    encoders: dict[str, torch.Tensor] = field(default_factory=dict)
    """The state of the model's `Encoders`, for users and items that training has not seen; those
    that it has are whole vectors in the tables of `model`. Empty where there are none."""
    categories: pa.Table = field(default_factory=lambda: NO_CATEGORIES)
    """Of features: `side`, `feature`, `index` and the `value` as text."""
    history: dict[str, torch.Tensor] = field(default_factory=dict)
    """User u has the rows row[first[u]:first[u + 1]] of `item_bag.table_RW`, item i those of
    `item_row` and `item_first` of `user_bag.table_RW`; empty for a model without item bags,
    and for one that was written before folders kept them."""
    events: dict[str, torch.Tensor] = field(default_factory=dict)
    """The last known events of users (see artifact/events.py), for sequence encoders."""
    past: Known | None = None
    """Age and popularity of items, for models that read them."""
    added_items: int = 0
    """Cold-start items, which come last (see inference/cold_start/new_items)."""

    def unseen(self, entity: Literal["user", "item"]) -> torch.Tensor:
        """bool (N + 1,): the index has no training row. The last one is that of all unknown ids.

        Added items, and all known ids of an older folder, which does not say, are seen.
        """
        unseen_N = torch.zeros(getattr(self.schema, entity).size + 1, dtype=torch.bool)
        if (trained_N := self.seen.get(f"trained_{entity}")) is not None:
            unseen_N[: len(trained_N)] = ~trained_N
        unseen_N[-1] = True
        return unseen_N

    @property
    def known_items(self) -> int:
        """Items of the training data."""
        return self.schema.item.size - self.added_items


def save_artifact(
    out: Path,
    weights: dict[str, torch.Tensor],
    config: Config,
    data: Path,
    *,
    seen: dict[str, torch.Tensor],
    card: dict[str, Any],
    calibrations: Calibrations,
    encoders: dict[str, torch.Tensor] | None = None,
    history: dict[str, torch.Tensor] | None = None,
    events: dict[str, torch.Tensor] | None = None,
    items: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write the artifact completely or not at all; an older one at `out` is replaced at the end.

    `weights` is the state_dict of a model without encoders (`Recommender.materialize`), `encoders`
    theirs, `history` what known users have of it, `events` the last ones of users, `items` a
    `Known`; `data` the prepared folder it was trained on, or an artifact: both hold the ids and the
    schema.
    """
    with replacing_folder(Path(out)) as folder:
        save_file({k: v.contiguous().cpu() for k, v in weights.items()}, folder / FILES[0])
        save_file(seen, folder / FILES[1])
        named = ((ENCODERS, encoders), (HISTORY, history), (EVENTS, events), (ITEMS, items))
        for name, tensors in named:
            if tensors:
                save_file({k: v.contiguous().cpu() for k, v in tensors.items()}, folder / name)
        for made in folder.glob("*.safetensors"):  # for their owner; servers are other users
            made.chmod(folder.stat().st_mode & 0o666)
        for file in ("users.parquet", "items.parquet", "schema.json"):
            shutil.copyfile(data / file, folder / file)
        if (data / VOCABULARIES).is_file():
            shutil.copyfile(data / VOCABULARIES, folder / VOCABULARIES)
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        write_json(folder / "card.json", card)
        write_json(folder / "calibration.json", calibration.to_json(calibrations))
        write_json(folder / MANIFEST, manifest_of(folder, version_of(config, bool(encoders))))


def artifact_config(path: Path) -> Config:
    """The configuration of a model folder or run folder. Raises DataError."""
    return _load_config(find_artifact(path) / "config.yaml")


def load_artifact(path: Path) -> Artifact:
    """Load a model folder or run folder. Raises DataError naming the file that is wrong."""
    folder = find_artifact(path)
    check_files(folder)
    schema = _load_schema(folder)
    config = _load_config(folder / "config.yaml")
    encoders = _load_encoders(folder / ENCODERS)
    return Artifact(
        schema=schema,
        config=config,
        users=load_ids(folder / "users.parquet", schema.user),
        items=load_ids(folder / "items.parquet", schema.item),
        seen=load_seen(folder / "seen.safetensors", schema),
        model=_load_model(folder, config, schema),  # after the ids: they bound its size
        card=_read_object(folder / "card.json"),
        calibration=calibration.load(folder / "calibration.json", schema),
        encoders=encoders,
        history=load_history(folder / HISTORY, schema, encoders),
        events=load_events(folder / EVENTS, schema, config.model.reads_events),
        past=load_items(folder / ITEMS, schema, config.model.reads_items),
        categories=_load_categories(folder / VOCABULARIES),
    )


def _load_config(path: Path) -> Config:
    """A wrong setting in a model folder is invalid data, not a wrong option."""
    with reading_model(path):
        raw = read_config_file(str(path))
    try:
        return parse_config(raw)
    except ConfigError as error:
        reason = (str(error).splitlines() or ["it is not valid"])[0]
        raise DataError(f"{path} cannot be used: {reason}") from None


def _load_encoders(path: Path) -> dict[str, torch.Tensor]:
    with reading_model(path):
        return with_new_parts(load_file(path)) if path.is_file() else {}


def _load_categories(path: Path) -> pa.Table:
    with reading_model(path):
        if not path.is_file():
            return NO_CATEGORIES
        return whole(pq.read_table(path, columns=NO_CATEGORIES.column_names))


def _load_schema(folder: Path) -> Schema:
    """Raises DataError; where the remedy is to prepare anew, it is here to export anew."""
    path, again = folder / SCHEMA_FILE, "; prepare the data again"
    try:
        return Schema.load(folder)
    except DataError as error:
        text = str(error)
        if not text.endswith(again):
            raise
        raise damaged(path, text.removeprefix(f"{path}: ").removesuffix(again)) from None


def _load_model(folder: Path, config: Config, schema: Schema) -> Recommender:
    try:
        model = build_model(config, schema, finished=True)
        state = with_new_parts(load_file(folder / "weights.safetensors"))
        model.load_state_dict(with_later_parts(state, model.state_dict()))
    except (RuntimeError, TypeError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{folder}/weights.safetensors does not fit config.yaml: {reason}"
        ) from None
    return model.eval()


def _read_object(path: Path) -> dict[str, Any]:
    with reading_model(path):
        return read_object(path)
