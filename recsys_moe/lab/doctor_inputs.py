"""The checks of --data and --run. Their DataErrors do not name the folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recsys_moe.errors import DataError
from recsys_moe.schema import ENTITIES, SPLITS, Schema


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in `folder`, so that messages do not name it."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError:
        raise DataError("is not a folder that can be opened") from None
    try:
        yield
    finally:
        os.chdir(before)


def look_at_data(folder: Path) -> dict[str, Any]:
    """Facts about a prepared folder, read as in training. Raises DataError."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import StoredColumns, reading_parquet

    schema = Schema.load(folder)
    rows = {}
    for split in SPLITS:
        columns = StoredColumns(folder, schema, split)
        columns.group(0)  # its columns and their ranges
        rows[split] = len(columns)
    for feature, file in ((schema.user, "users.parquet"), (schema.item, "items.parquet")):
        with reading_parquet(folder / file):
            count = pq.read_metadata(folder / file).num_rows
        if count != feature.size:
            raise DataError(
                f"{file} must have {feature.size} rows, got {count}; prepare the data again"
            )
    features = _look_at_features(folder, schema) if schema.has_features else {}
    return {
        "name": schema.name,
        "protocol": schema.protocol,
        "users": schema.user.size,
        "items": schema.item.size,
        "rows": rows,
        "tasks": {task.name: task.kind for task in schema.tasks},
        **({"features": features} if features else {}),
    }


def _look_at_features(folder: Path, schema: Schema) -> dict[str, str]:
    """Kinds by name. Of the split files the first row group is read."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import reading_parquet
    from recsys_moe.data.entries import entries_of_table, feature_entries

    for entity in ("user", "item"):
        features = getattr(schema, f"{entity}_features")
        if features:
            size = getattr(schema, entity).size
            feature_entries(folder / f"{entity}s.parquet", features, size)
    for split in SPLITS if schema.context_features else ():
        path = min((folder / split).glob("*.parquet"))
        with reading_parquet(path):
            table = pq.ParquetFile(path).read_row_group(0)
        entries_of_table(table, schema.context_features, path)
    _check_vocabularies(folder / "features.parquet", schema)
    return {
        one.name: one.kind for entity in ENTITIES for one in getattr(schema, f"{entity}_features")
    }


def _check_vocabularies(path: Path, schema: Schema) -> None:
    """Every category has a text, and each feature has the size in schema.json."""
    import pandas as pd

    from recsys_moe.data.columns import reading_parquet

    if not path.is_file():
        raise DataError(f"{path} is missing; prepare the data again")
    try:
        with reading_parquet(path):
            known = dict(list(pd.read_parquet(path).groupby(["side", "feature"], sort=False)))
        for entity in ENTITIES:
            for one in getattr(schema, f"{entity}_features"):
                rows = known.pop((entity, one.name), pd.DataFrame({"index": [], "value": []}))
                if [*rows["index"]] != [*range(one.size)] or rows["value"].nunique() != one.size:
                    raise DataError(
                        f"{path}: {entity} feature {one.name!r} must have {one.size} indices from "
                        "0 on, each with a value of its own; prepare the data again"
                    )
    except KeyError as error:
        raise DataError(f"{path}: column {error} is missing; prepare the data again") from None
    if known:
        raise DataError(
            f"{path}: feature {min(known)} is not in schema.json; prepare the data again"
        )


def look_at_model(path: Path) -> dict[str, Any]:
    """Facts about a model or a run's model; checks the hashes of its files. Raises DataError."""
    from recsys_moe.artifact.model_folder import load_artifact

    artifact = load_artifact(path)
    return {
        "data": artifact.schema.name,
        "model": artifact.config.model.name,
        **_routing(artifact.config.model),
        "tasks": [task.name for task in artifact.schema.tasks],
        "parameters": sum(parameter.numel() for parameter in artifact.model.parameters()),
    }


def _routing(settings: Any) -> dict[str, Any]:
    """Router and experts, of a model that has them."""
    if not hasattr(settings, "router"):
        return {}
    return {"router": settings.router.name, "experts": settings.num_experts}


def changed_data(data: Path, run: Path) -> list[str] | None:
    """Files that differ from the training data of the run, by their hashes.

    None for a model outside a run folder.
    """
    from recsys_moe.artifact.manifest import find_artifact
    from recsys_moe.artifact.run_folder import DATA_LOCK, changed_files, data_hashes, locked_hashes

    # What a run, or the run of a model, has kept of its data.
    folders = [run, find_artifact(run).resolve().parent]
    lock = next((folder for folder in folders if (folder / DATA_LOCK).is_file()), None)
    if lock is None:
        return None
    with inside(lock):
        locked = locked_hashes(Path())
    with inside(data):
        return list(changed_files(locked, data_hashes(Path())))
