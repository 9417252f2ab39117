"""Reads files of a model folder, with one-line errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from recsys_moe.data.streaming import ITEM_ROWS
from recsys_moe.errors import DataError
from recsys_moe.schema import Feature, Schema

TRAINED = ("trained_user", "trained_item")
"""In seen.safetensors: which known users and items have a training row, bool (N,). Older folders
have neither."""


@contextmanager
def reading_model(path: Path) -> Iterator[None]:
    """Turns any error of a reader into one DataError with the name of the file."""
    try:
        yield
    except DataError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError) as error:
        raise damaged(path, error) from None
    except (RuntimeError, ValueError, SafetensorError, pa.ArrowException) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: object) -> DataError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return DataError(f"{path} is damaged: {reason}; export the model again")


def load_seen(path: Path, schema: Schema) -> dict[str, torch.Tensor]:
    with reading_model(path):
        seen = load_file(path)
        ends = [int(end) for end in seen["offsets"][[0, -1]]]
        is_whole = len(seen["offsets"]) == schema.user.size + 1
        is_whole &= bool((seen["offsets"].diff() >= 0).all())
        is_whole &= bool(((seen["items"] >= 0) & (seen["items"] <= schema.item.size)).all())
        is_whole &= ends == [0, len(seen["items"])]
        for name, entity in zip(TRAINED, (schema.user, schema.item), strict=True):
            own_N = seen.get(name, torch.ones(entity.size, dtype=torch.bool))
            is_whole &= own_N.shape == (entity.size,) and own_N.dtype == torch.bool
        if (rows_N := seen.get(ITEM_ROWS)) is not None:
            is_whole &= rows_N.ndim == 1 and len(rows_N) == schema.item.size
    if not is_whole:
        raise damaged(path, "offsets and items do not match schema.json")
    return seen


def load_ids(path: Path, feature: Feature) -> pa.Table:
    with reading_model(path):
        table = whole(pq.read_table(path))
        names = table.column_names
    if feature.name not in names or table.num_rows != feature.size:
        wanted = f"it must have a column {feature.name!r} and {feature.size} rows"
        raise damaged(path, f"{wanted}, got {names} and {table.num_rows}")
    return table


def whole(table: pa.Table) -> pa.Table:
    """With names and texts that can be decoded, which pyarrow does only where they are used."""
    table.validate(full=True)
    table.schema.names  # noqa: B018 - raises where one cannot
    return table
