"""evaluate: from a run or model folder to the metrics of a split, kept in the run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.artifact.evaluation import evaluate_model
from recsys_moe.artifact.manifest import VOCABULARIES
from recsys_moe.artifact.model_folder import NO_CATEGORIES, Artifact, load_artifact
from recsys_moe.artifact.periods import Periods, check_periods
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.artifact.segments import Segments
from recsys_moe.config.encoders import chosen_context, numbers_a_row
from recsys_moe.config.past import Past
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Rows, reading_parquet
from recsys_moe.data.streaming import open_rows, rows_within
from recsys_moe.data.times import row_times
from recsys_moe.errors import DataError
from recsys_moe.files import read_object, write_json
from recsys_moe.schema import Schema, check_split

logger = logging.getLogger("recsys_moe.evaluate")
WHOLE = Past()
OPTIONAL = ("ranking", "periods", "rows_without_time")


def evaluate_artifact(
    path: Path,
    split: str,
    data: Path | None,
    progress: Callable[[int], None] = lambda rows: None,
    *,
    periods: int | None = None,
    past: Past = WHOLE,
) -> dict[str, Any]:
    """Evaluate a run or model folder on a split of its data. Raises ConfigError and DataError.

    A run folder knows its data; a model folder alone needs `data`. `periods`: add the metrics of
    that many periods of the split. `past`: what rows see of it.
    """
    check_split("--split", split)
    artifact = load_artifact(path)
    past.check(artifact.config, split)
    folder, schema = data_of(path, artifact, data)
    by_time = [] if periods is None else [periods_of(folder, schema, split, periods)]
    rows = open_split(artifact, folder, schema, split, past=past)
    train = open_split(artifact, folder, schema, "train", past=None)  # for counts alone
    by_user = periods is None  # their times come in the order of the file
    batches = EvalBatches(rows, artifact.config.eval_rows, by_user=by_user)
    result = evaluate_model(
        artifact.model,
        batches,
        schema,
        artifact.config,
        split=split,
        progress=progress,
        calibrations=artifact.calibration,
        apart=[segments_of(artifact, train, schema), *by_time],
    )
    result["baselines"] = baselines(train, batches.rows, schema)
    result["trained_on_these_data"] = schema == artifact.schema
    return result | past.described(artifact.config)


def open_split(
    artifact: Artifact, folder: Path, schema: Schema, split: str, *, past: Past | None = WHOLE
) -> Rows:
    """A split of prepared data with what the model reads of it. Raises DataError."""
    context = chosen_context(artifact.config, artifact.schema)
    numbers = numbers_a_row(artifact.config, artifact.schema)
    most = rows_within(schema, artifact.config.data.max_memory_mb, context=numbers)
    history = None if past is None else past.of(artifact.config, folder, schema, split)
    return open_rows(folder, schema, split, most, context=context, history=history)


def segments_of(artifact: Artifact, train: Rows, schema: Schema) -> Segments:
    """Empty segments of a model's data."""
    context = chosen_context(artifact.config, artifact.schema)
    found = [(one.name, _categories(artifact.categories, [one.name])) for one in context]
    return Segments(train, schema, [(n, [row["value"] for row in rows]) for n, rows in found])


def periods_of(folder: Path, schema: Schema, split: str, count: int) -> Periods:
    """Empty periods of a split. Raises ConfigError and DataError."""
    check_periods(count)
    return Periods(row_times(folder, split, "--periods"), schema, count)


def data_of(path: Path, artifact: Artifact, data: Path | None) -> tuple[Path, Schema]:
    """The prepared folder `data`, by default the one that the run at `path` has on record.

    Raises DataError when there is none or it does not fit the model.
    """
    folder = Path(data) if data else recorded_data(path)
    schema = Schema.load(folder)
    _check_fits(artifact, schema, folder)
    return folder, schema


def recorded_data(path: Path) -> Path:
    """The data that a run folder, or the run folder around a model folder, was trained on."""
    for lock in (Path(path) / DATA_LOCK, Path(path).resolve().parent / DATA_LOCK):
        if lock.is_file():
            break
    else:
        raise DataError(f"{path} does not record its training data; pass --data DIR")
    try:
        folder = Path(json.loads(lock.read_text(encoding="utf-8"))["folder"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DataError(f"{lock} is damaged; pass --data DIR") from None
    if not folder.is_dir():
        raise DataError(f"the data of {path} are not at {folder}; pass --data DIR")
    return folder


def _check_fits(artifact: Artifact, schema: Schema, folder: Path) -> None:
    """Refuse data with other tasks or another order of ids."""
    wanted, given = ([(t.name, t.kind) for t in s.tasks] for s in (artifact.schema, schema))
    if wanted != given:
        raise DataError(f"{folder}: the model's tasks are {wanted} in this order, got {given}")
    for name, ids in (("user", artifact.users["user"]), ("item", artifact.items["item"])):
        file = folder / f"{name}s.parquet"
        if not file.is_file() or not _holds(file, name, ids):
            raise DataError(
                f"{file} is missing or differs from the ids the model was trained with; "
                "evaluate on the data of the model, or score raw ids with `recsys-moe predict`"
            )
    _check_context(artifact, schema, folder)


def _check_context(artifact: Artifact, schema: Schema, folder: Path) -> None:
    """Refuse context features of another kind, with other categories or another scale."""
    context = chosen_context(artifact.config, artifact.schema)
    if not context:
        return
    names = [one.name for one in context]
    path, same = folder / VOCABULARIES, set(context) <= set(schema.context_features)
    if same and any(one.size for one in context):
        with reading_parquet(path):
            known = pq.read_table(path, columns=NO_CATEGORIES.column_names)
        same = _categories(known, names) == _categories(artifact.categories, names)
    if not same:
        raise DataError(
            f"{folder}: context features {', '.join(names)} must have the categories and scales "
            "that the model was trained with; evaluate on the data of the model, or score raw "
            "values with `recsys-moe predict`"
        )


def _categories(table: pa.Table, names: list[str]) -> list[dict[str, Any]]:
    of_context = pc.equal(table["side"], "context")
    mine = pc.and_(of_context, pc.is_in(table["feature"], value_set=pa.array(names)))
    rows = table.filter(mine).sort_by([("feature", "ascending"), ("index", "ascending")])
    return rows.select(["feature", "value"]).to_pylist()


def _holds(file: Path, name: str, ids: pa.ChunkedArray) -> bool:
    with reading_parquet(file):
        table = pq.ParquetFile(file).read()
        return name in table.column_names and bool(table[name].equals(ids))


def warn_of(result: dict[str, Any]) -> None:
    """Warn of every metric that a baseline reaches, and of data that the run was not trained on:
    rows of another preparation may have been training rows of it. Whatever rows see of the past,
    baselines are the same."""
    for line in missed(result):
        logger.warning(line)
    if not result["trained_on_these_data"]:
        logger.warning(
            "not the training data of this model: it may have trained on some of these rows"
        )


def save_evaluation(path: Path, result: dict[str, Any]) -> None:
    """Keep the result in evaluation/<split>.json when `path` is a run folder and the data its own.

    What options had added there stays when the result is of the same model and without them. Warns
    of a folder that cannot be written.
    """
    if result["trained_on_these_data"] and (Path(path) / "model").is_dir():
        file = Path(path) / "evaluation" / f"{result['split']}.json"
        try:
            write_json(file, {**_kept(file, result), **result})
        except OSError as error:
            reason = error.strerror or error
            logger.warning("cannot write %s, the result is not saved: %s", file, reason)


def _kept(file: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What options added to an earlier evaluation of the same rows and weights."""
    try:
        before = read_object(file)
    except (OSError, ValueError):
        return {}
    same = before.get("loss") == result["loss"]
    return {name: before[name] for name in OPTIONAL if same and name in before}
