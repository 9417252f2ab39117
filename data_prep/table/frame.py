"""DataFrames in place of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys_moe.frames import arrow_table


@dataclass(frozen=True, eq=False)
class Frame:
    """A DataFrame, and what messages call it."""

    data: Any
    label: str = "DataFrame"

    def table(self, columns: list[str] | None) -> pa.Table:
        """The columns (None: all). Raises DataError."""
        return arrow_table(self.data, columns, self.label)

    def __str__(self) -> str:
        return self.label


Place = Path | Frame
