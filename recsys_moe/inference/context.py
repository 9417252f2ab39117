"""Context features of requests: raw values -> what a model is asked with.

Axes: B rows, C context features of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.cells import LARGEST, UNITS, flat, times
from recsys_moe.config.encoders import TIME_FEATURE as TIME
from recsys_moe.config.encoders import chosen_context
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.features import FeatureReader, Unknown, is_missing
from recsys_moe.inference.events.observed import LATEST
from recsys_moe.inference.plain import plain, plain_dict, shown


class Contexts(NamedTuple):
    """The context of each row, read once. May be passed wherever a context may be."""

    value_BC: Tensor | None
    """(B, C) as in `Request.context`; None: all are missing."""
    unknown: dict[int, Unknown] = {}  # noqa: RUF012 - never changed
    """By row, the categories that training has not seen."""
    time_B: Tensor | None = None
    """When the rows ask, for models that read times or events; NaN: unknown. (B,) float64"""


Context: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | Contexts | None
"""Raw values by name, of all rows or of each row."""


class ContextReader(FeatureReader):
    """Reads the context features of a model: an unknown category has the index `size`."""

    reads_time = False
    """Does `time` belong to the context?"""

    @property
    def columns(self) -> list[str]:
        """What a context may hold."""
        return [*self.names, *[TIME] * self.reads_time]

    def read_rows(self, context: Context, rows: int) -> Contexts:
        """Of `rows` rows. Raises DataError for an unknown name, a wrong value, another length."""
        if isinstance(context, Contexts):
            return context
        if context is None or (isinstance(context, dict | list) and not context):
            return Contexts(None)
        found, time_B = plain(context), None
        if self.reads_time:
            found, time_B = _without_time(found, rows)
        return self._read(found, rows)._replace(time_B=time_B)

    def _check_name(self, name: str) -> None:
        if name not in self.names and not self.reads_time and name == TIME:
            raise DataError(
                f"the model does not read {TIME}; omit it, or train with model.sequence or "
                "model.time_features"
            )
        if not self.names and self.reads_time:
            raise DataError(f"unknown context feature {name!r}; the model reads {TIME} alone")
        super()._check_name(name)

    def _read(self, found: Any, rows: int) -> Contexts:
        if not isinstance(found, list):
            values, unknown = self._row(found)
            row_1C = torch.tensor([values])
            if row_1C.isnan().all():
                return Contexts(None)
            of_rows = range(rows if unknown else 0)
            return Contexts(row_1C.expand(rows, -1), dict.fromkeys(of_rows, unknown))
        if len(found) != rows:
            raise DataError(
                f"context must be of all rows or one for each of {rows}, got {len(found)}"
            )
        read = [self._row(one) for one in found]
        unknown_rows = {row: unknown for row, (_, unknown) in enumerate(read) if unknown}
        value_BC = torch.tensor([values for values, _ in read]).view(rows, len(self.names))
        return Contexts(None if value_BC.isnan().all() else value_BC, unknown_rows)

    def read_all(self, contexts: Sequence[tuple[Context, int]]) -> Contexts:
        """Of several requests, one after the other: their contexts and numbers of rows."""
        if not any(context for context, _ in contexts):
            return Contexts(None)
        values, times, start = [], [], 0
        unknown: dict[int, Unknown] = {}
        for context, rows in contexts:
            read = self.read_rows(context, rows)
            missing_BC = torch.full((rows, len(self.names)), math.nan)
            values.append(missing_BC if read.value_BC is None else read.value_BC)
            missing_B = torch.full((rows,), math.nan, dtype=torch.float64)
            times.append(missing_B if read.time_B is None else read.time_B)
            unknown |= {start + row: categories for row, categories in read.unknown.items()}
            start += rows
        return Contexts(torch.cat(values), unknown, torch.cat(times) if self.reads_time else None)

    def read_columns(self, rows: pa.Table, rows_before: int = 0) -> Contexts:
        """Of the columns with the names of the features; a missing one has no value. Raises
        DataError with the row."""
        time_B = None
        if self.reads_time and TIME in rows.column_names:
            time_B = _column_of_times(rows[TIME], rows_before)
        present = [name for name in self.names if name in rows.column_names]
        if not present:
            return Contexts(None, time_B=time_B)
        value_BC = torch.full((rows.num_rows, len(self.names)), math.nan)
        unknown: dict[int, Unknown] = {}
        for place, name in enumerate(self.names):
            if name in present:
                value_BC[:, place] = self._column(name, rows[name], rows_before, unknown)
        return Contexts(value_BC, unknown, time_B)

    def _row(self, values: Any) -> tuple[list[float], Unknown]:
        given = plain_dict(values, "context")
        for name in given:
            self._check_name(name)
        read = [self.value(name, given.get(name)) for name in self.names]
        pairs = zip(self.names, read, strict=True)
        return read, {n: [str(given[n])] for n, value in pairs if self._is_unknown(n, value)}

    def value(self, name: str, raw: Any) -> float:
        """The index of a category or a standardised number; NaN for a missing value.

        Raises DataError for a wrong one.
        """
        entries, unknown = self.read({name: raw})
        if unknown:
            return float(self._features[name].size)
        if not entries:
            return math.nan
        [(row, weight)] = entries
        is_number = self._features[name].kind == "numeric"
        return weight if is_number else float(row - self._start[name])

    def raw(self, name: str, value: float) -> str | float | None:
        """The category or number that `value` makes of; None for an unknown category."""
        is_number = self._features[name].kind == "numeric"
        row = self._start[name] + (0 if is_number else int(value))
        return self.named(row, value)[1]

    def _is_unknown(self, name: str, value: float) -> bool:
        feature = self._features[name]
        return feature.kind == "categorical" and value == feature.size

    def _column(
        self, name: str, column: pa.ChunkedArray, rows_before: int, unknown: dict[int, Unknown]
    ) -> Tensor:
        """(B,); each distinct value is read once."""
        cells = column.combine_chunks()
        if pa.types.is_nested(cells.type):
            raise DataError(f"column {name!r} must hold single values, got {cells.type}")
        coded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
        index_B = torch.tensor(coded.indices.fill_null(len(coded.dictionary)).to_numpy())
        values = [math.nan]
        raw = coded.dictionary.to_pylist()
        for place, one in enumerate(raw):
            try:
                values.insert(place, self.value(name, plain(one)))
            except DataError as error:
                row = int((index_B == place).nonzero()[0])
                raise DataError(f"row {rows_before + row + 1}: {error}") from None
        value_B = torch.tensor(values)[index_B.long()]
        if self._features[name].kind == "categorical":
            for row in (value_B == self._features[name].size).nonzero()[:, 0].tolist():
                unknown.setdefault(row, {})[name] = [shown(raw[int(index_B[row])])]
        return value_B


def context_reader(artifact: Artifact) -> ContextReader:
    """Of the context features of a model."""
    chosen = chosen_context(artifact.config, artifact.schema)
    reader = ContextReader("context", chosen, artifact.categories)
    # A feature that was prepared under this name is meant by it, where the model needs no time.
    reader.reads_time = artifact.config.model.reads_past and TIME not in reader.names
    return reader


def _without_time(found: Any, rows: int) -> tuple[Any, Tensor]:
    """A context without the time, and that of each row, NaN where unknown."""
    parts = found if isinstance(found, list) else [found]
    given = [plain_dict(one, "context") for one in parts]
    moments = [seconds_of(one.get(TIME)) for one in given]
    rest = [{name: value for name, value in one.items() if name != TIME} for one in given]
    time_B = torch.tensor(moments, dtype=torch.float64)
    return (rest, time_B) if isinstance(found, list) else (rest[0], time_B.expand(rows))


def _column_of_times(column: pa.ChunkedArray, rows_before: int) -> Tensor:
    """Seconds since 1970, NaN where a cell is empty. Raises DataError with the row."""
    raw = flat(column)
    try:
        found = times(raw)
    except pa.ArrowException:
        raise DataError(f"column {TIME!r} must hold times, got {raw.type}") from None
    if len(units := np.unique(found.unit[found.unit < len(UNITS)])) > 1:
        named = " and ".join(UNITS[unit] for unit in units)
        raise DataError(
            f"column {TIME!r} must be in one unit, but by magnitude it is in {named}; convert it"
        )
    seconds = found.seconds + found.nanoseconds / 1e9
    if (wrong := found.wrong | ~((seconds >= 0) & (seconds <= LATEST))).any():
        row = int(wrong.argmax())
        raise DataError(f"row {rows_before + row + 1}: {_no_time(raw[row].as_py())}")
    return torch.from_numpy(np.where(found.missing, math.nan, seconds))


def seconds_of(raw: Any) -> float:
    """Of one time, as `prepare` reads it; NaN where it is missing. Raises DataError."""
    if is_missing(raw):
        return math.nan
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    if is_number and 0 <= raw < LARGEST["s"]:
        return float(raw)
    if isinstance(raw, bool | list | dict):
        raise DataError(_no_time(raw))
    if isinstance(raw, np.datetime64):  # of days, say, which Arrow does not take
        raw = raw.astype("M8[us]").item()
    try:
        return float(_column_of_times(pa.chunked_array([pa.array([raw])]), 0))
    except (DataError, pa.ArrowException, OverflowError, UnicodeError):
        raise DataError(_no_time(raw)) from None


def _no_time(raw: Any) -> str:
    rule = f"{TIME} must be seconds since 1970 (UTC) or an ISO date, of the years 1970 to 9999"
    return f"{rule}, got {shown(raw)}; convert it"
