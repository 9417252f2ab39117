"""How the ids of a column are spelled, and what to say where that changes their type."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.read.bad_rows import Mask
from data_prep.read.delimited import shown
from data_prep.table.cells import Cells, mask
from data_prep.table.files import TableFile
from data_prep.table.spec import Request
from recsys_moe import raw_ids

log = logging.getLogger("recsys_moe.prepare")
LONG = 1 << 26
"""Bytes of a text file in which the line of a row takes too long to find for a warning."""


RULES = {
    "floats": "floats without a fraction are read as integers",
    "rounded": "floats this large may have been rounded; write integers or text",
    "texts": "ids are text, because not all of {cells} are plain integers",
}
"""By field of Spelled."""


class Found(NamedTuple):
    """Cells of a kind: how many, and of the first what it says and where it is."""

    cells: int = 0
    cell: str = ""
    place: str | Callable[[], str] = ""

    def joined(self, other: Found) -> Found:
        """These and then those of `other`."""
        return (self if self.cells else other)._replace(cells=self.cells + other.cells)

    def __str__(self) -> str:
        place = self.place() if callable(self.place) else self.place
        return f"cells: {self.cells}, such as {self.cell} in {place}"


class Spelled(NamedTuple):
    """The usable ids of a column."""

    cells: int = 0
    floats: Found = Found()
    """Whole numbers in floating point."""
    rounded: Found = Found()
    """Those of them that may have been another number before they were floating point."""
    texts: Found = Found()
    """Ids that are not the plain spelling of a whole number."""

    def joined(self, other: Spelled) -> Spelled:
        """These and then those of `other`."""
        pairs = zip(self[1:], other[1:], strict=True)
        return Spelled(self.cells + other.cells, *(one.joined(more) for one, more in pairs))

    def warn(self, column: str) -> None:
        """Warn where ids change type."""
        for name, rule in RULES.items():
            found: Found = getattr(self, name)
            if found.cells and (name != "texts" or 2 * found.cells < self.cells):
                log.warning("%s: %s (%s)", column, rule.format(cells=self.cells), found)


def joined(parts: Iterable[tuple[Spelled, Spelled]]) -> tuple[Spelled, Spelled]:
    """Of users and of items, in all parts."""
    users, items = zip(*parts, strict=True)
    return reduce(Spelled.joined, users), reduce(Spelled.joined, items)


def warned(parts: Iterable[tuple[Spelled, Spelled]], request: Request) -> tuple[Spelled, Spelled]:
    """`joined`, with warnings in the log."""
    both = joined(parts)
    for found, column in zip(both, (request.user, request.item), strict=True):
        found.warn(column)
    return both


def spelled(cells: Cells, column: str, texts: pa.Array) -> Spelled:
    """Of a column that was read as `texts`."""
    raw = cells.flat(column)
    floats = _floats(raw, texts) & cells.good
    others = ~mask(pc.fill_null(raw_ids.are_integers(texts), False)) & cells.good

    def found(chosen: Mask) -> Found:
        count = int(chosen.sum())
        if not count:
            return Found()
        row = int(np.argmax(chosen))
        return Found(count, shown(raw[row].as_py()), _place(cells.file, row))

    rounded = _rounded(raw, texts, floats) if floats.any() else floats
    return Spelled(int(cells.good.sum()), *map(found, (floats, rounded, others)))


def _floats(raw: Any, texts: pa.Array) -> Mask:
    if raw_ids.is_text(raw.type):
        return mask(pc.fill_null(pc.not_equal(raw, texts), False))
    if pa.types.is_integer(raw.type):
        return np.zeros(len(raw), dtype=bool)
    return mask(texts.is_valid())


def _rounded(raw: Any, texts: pa.Array, floats: Mask) -> Mask:
    """Beyond 2^53 in float64, 2^24 in float32; decimal numbers are exact."""
    if pa.types.is_decimal(raw.type):
        return np.zeros(len(raw), dtype=bool)
    kind = raw.type.to_pandas_dtype() if pa.types.is_floating(raw.type) else np.float64
    rounded = floats.copy()
    numbers = texts.filter(pa.array(floats)).cast(pa.float64()).to_numpy()
    rounded[floats] = np.abs(numbers) >= 2.0 ** (np.finfo(kind).nmant + 1)
    return rounded


def _place(file: TableFile, row: int) -> str | Callable[[], str]:
    """Where a row is; of a file in text it takes long to say, so only when it is asked for."""
    if file.line is None or file.columns.nbytes > LONG:
        return f"{file.label}, row {file.first + row + 1}"
    return partial(file.place, row)
