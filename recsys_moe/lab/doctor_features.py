"""What doctor looks at of the features of prepared data. Raises DataError."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recsys_moe.errors import DataError
from recsys_moe.schema import SIDES, SPLITS, Schema, SideFeature

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "features.parquet"
COLUMNS = ("side", "feature", "index", "value")
AGAIN = "prepare the data again"


def look_at_features(folder: Path, schema: Schema) -> dict[str, str]:
    """Kinds by name; the columns and the vocabularies must be those of schema.json.

    Of the split files the first row group is read.
    """
    for side, path, table in _tables(folder, schema):
        for feature in _features(schema, side):
            _check_column(table, feature, path)
    if schema.has_features:
        _check_vocabularies(folder, schema)
    return {one.name: one.kind for side in SIDES for one in _features(schema, side)}


def _features(schema: Schema, side: str) -> tuple[SideFeature, ...]:
    found: tuple[SideFeature, ...] = getattr(schema, f"{side}_features")
    return found


def _tables(folder: Path, schema: Schema) -> Iterator[tuple[str, Path, pa.Table]]:
    """Side, file and its columns."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import reading

    for side in ("user", "item"):
        if _features(schema, side):
            with reading(path := folder / f"{side}s.parquet"):
                table = pq.ParquetFile(path).read()
            yield side, path, table
    if schema.context_features:
        for split in SPLITS:
            path = min((folder / split).glob("*.parquet"))
            with reading(path):
                table = pq.ParquetFile(path).read_row_group(0)
            yield "context", path, table


def _check_column(table: pa.Table, feature: SideFeature, path: Path) -> None:
    import pyarrow as pa

    from recsys_moe.data.columns import reading

    kinds = {"categorical": pa.int32(), "multi": pa.list_(pa.int32()), "numeric": pa.float32()}
    name, kind = feature.column, kinds[feature.kind]
    with reading(path):
        if name not in table.column_names:
            raise DataError(f"{path}: column {name!r} is missing; {AGAIN}")
    if not table[name].type.equals(kind):
        raise DataError(f"{path}: {name} must hold {kind}, got {table[name].type}; {AGAIN}")
    rule = _broken_rule(table[name], feature)
    if rule:
        raise DataError(f"{path}: {name} must hold {rule}; {AGAIN}")


def _broken_rule(column: pa.ChunkedArray, feature: SideFeature) -> str | None:
    """What the values of a column break, if anything; nulls are missing values."""
    import pyarrow.compute as pc

    if feature.kind == "numeric":
        finite = pc.all(pc.is_finite(column), min_count=0).as_py()
        return None if finite else "finite numbers"
    index = pc.list_flatten(column) if feature.kind == "multi" else column
    if feature.kind == "multi" and index.null_count:
        return "lists without nulls"
    ends = pc.min_max(index, min_count=1).as_py()
    outside = ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] <= feature.size
    return f"indices in 0..{feature.size}" if outside else None


def _check_vocabularies(folder: Path, schema: Schema) -> None:
    """Every category has its text, and each feature as many as schema.json says."""
    path = folder / FILE
    found = _vocabularies(path)
    for side in SIDES:
        for one in _features(schema, side):
            entries = found.pop((side, one.name), [])
            values = {value for _, value in entries if value is not None}
            if [n for n, _ in entries] != [*range(one.size)] or len(values) != one.size:
                raise DataError(
                    f"{path}: {side} feature {one.name!r} must have {one.size} indices from 0 on, "
                    f"each with a value of its own; {AGAIN}"
                )
    if found:
        side, name = min(found)
        raise DataError(f"{path}: {side} feature {name!r} is not in schema.json; {AGAIN}")


def _vocabularies(path: Path) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Indices and values by side and feature."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import reading

    if not path.is_file():
        raise DataError(f"{path} is missing; {AGAIN}")
    with reading(path):
        rows = pq.ParquetFile(path).read().to_pydict()
    if missing := [name for name in COLUMNS if name not in rows]:
        raise DataError(f"{path}: column {missing[0]!r} is missing; {AGAIN}")
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for side, feature, index, value in zip(*(rows[name] for name in COLUMNS), strict=True):
        found.setdefault((side, feature), []).append((index, value))
    return found
