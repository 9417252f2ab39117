"""Rows that cannot be used: the first one is an error, or all are skipped, counted and logged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recsys_moe.schema import DataError

log = logging.getLogger("recsys_moe.prepare")
LISTED = 10
OPTION = "--skip-bad-rows"
Mask = NDArray[np.bool_]


@dataclass
class BadRows:
    """What one command finds."""

    skip: bool | None = None
    """Leave such rows out; False: raise an error that names the option; None: there is none."""
    count: int = 0
    listed: list[str] = field(default_factory=list)
    """Of the first few: the place and the rule."""
    notes: Counter[str] = field(default_factory=Counter)
    """What else is counted on the way."""

    def check(self, wrong: Mask, describe: Callable[[int], str]) -> None:
        """The rows that are `wrong`; raises DataError for the first one unless they are skipped."""
        if not wrong.any():
            return
        if not self.skip:
            raise self.error(describe(int(np.argmax(wrong))))
        rows = np.flatnonzero(wrong)
        self.count += len(rows)
        self.listed += [describe(int(row)) for row in rows[: LISTED - len(self.listed)]]

    def add(self, description: str) -> None:
        """One row that is left out."""
        self.count += 1
        self.listed += [description][: LISTED - len(self.listed)]

    def error(self, description: str) -> DataError:
        """What to raise for a row where none is left out."""
        hint = "" if self.skip is None else f"; or pass {OPTION} to skip such rows"
        return DataError(description + hint)

    def joined(self, other: BadRows) -> BadRows:
        """These and then those of `other`."""
        listed = [*self.listed, *other.listed][:LISTED]
        notes = self.notes + other.notes
        return BadRows(other.skip, self.count + other.count, listed, notes)

    def report(self, kept: int) -> dict[str, int]:
        """What to add to the report; also logged. Raises DataError when most are bad."""
        if not self.skip:
            return {}
        if self.count > kept:
            raise DataError(
                f"{self.count} of {self.count + kept} rows are bad, the first is {self.listed[0]}; "
                "are these the right columns?"
            )
        for one in self.listed:
            log.warning("skipped: %s", one)
        if self.count > len(self.listed):
            log.warning("skipped: %d more", self.count - len(self.listed))
        return {"skipped_rows": self.count}
