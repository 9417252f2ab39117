"""What doctor looks at of --data and --run. Raises DataError, which does not say where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recsys_moe.errors import DataError


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in `folder`, so that messages about its files do not say where it lies."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError:
        raise DataError("must be a folder, and is none that can be opened") from None
    try:
        yield
    finally:
        os.chdir(before)


def look_at_data(folder: Path) -> dict[str, Any]:
    """Counts of a prepared folder, checked against its schema.json. Raises DataError."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import StoredColumns, reading
    from recsys_moe.lab.doctor_features import look_at_features
    from recsys_moe.schema import SPLITS, Schema

    schema = Schema.load(folder)
    rows = {}
    for split in SPLITS:
        columns = StoredColumns(folder, schema, split)
        columns.group(0)  # its columns and their ranges
        rows[split] = len(columns)
    for feature, file in ((schema.user, "users.parquet"), (schema.item, "items.parquet")):
        with reading(folder / file):
            count = pq.read_metadata(folder / file).num_rows
        if count != feature.size:
            raise DataError(
                f"{file} must have {feature.size} rows, got {count}; prepare the data again"
            )
    features = look_at_features(folder, schema)
    return {
        "name": schema.name,
        "protocol": schema.protocol,
        "users": schema.user.size,
        "items": schema.item.size,
        "rows": rows,
        "tasks": {task.name: task.kind for task in schema.tasks},
        **({"features": features} if features else {}),
    }


def look_at_model(path: Path) -> dict[str, Any]:
    """What a model or a run's model is; its files must have their hashes. Raises DataError."""
    from recsys_moe.artifact.model_folder import load_artifact

    artifact = load_artifact(path)
    router = artifact.config.model.router
    return {
        "data": artifact.schema.name,
        "router": router.name,
        "experts": artifact.config.model.num_experts,
        "tasks": [task.name for task in artifact.schema.tasks],
        "parameters": sum(parameter.numel() for parameter in artifact.model.parameters()),
    }


def changed_data(data: Path, run: Path) -> list[str] | None:
    """Files that are not those that the run was trained on, by the hashes that it has kept.

    None where the model lies in no run folder, so that nothing can be compared.
    """
    from recsys_moe.artifact.model_folder import find_artifact
    from recsys_moe.artifact.run_folder import (
        DATA_LOCK,
        changed_files,
        data_hashes,
        locked_hashes,
    )

    # What a run, or the run of a model, has kept of its data.
    folders = [run, find_artifact(run).resolve().parent]
    lock = next((folder for folder in folders if (folder / DATA_LOCK).is_file()), None)
    if lock is None:
        return None
    with inside(lock):
        locked = locked_hashes(Path())
    with inside(data):
        return list(changed_files(locked, data_hashes(Path())))
