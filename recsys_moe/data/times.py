"""The times of a split's rows. Axes: N rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.data.columns import known_values, reading_parquet
from recsys_moe.errors import ConfigError
from recsys_moe.schema import TIME

UNKNOWN = -(2**63)
"""Of a row without a time."""


def row_times(folder: Path, split: str, option: str) -> Tensor:
    """Seconds since 1970 of each row, in the order of `StoredColumns`; UNKNOWN without. (N,) int64

    Raises ConfigError, naming `option`, where the folder has no times.
    """
    parts = [_times(part) for part in sorted((Path(folder) / split).glob("*.parquet"))]
    known = [one for one in parts if one is not None]
    if not known or len(known) < len(parts) or not (torch.cat(known) != UNKNOWN).any():
        raise ConfigError(
            f"{option} needs rows with a time, but {folder}/{split} has none; prepare the data "
            "with times (`prepare table --timestamp COLUMN`)"
        )
    return torch.cat(known)


def _times(part: Path) -> Tensor | None:
    with reading_parquet(part):
        file = pq.ParquetFile(part)
        if TIME not in file.schema_arrow.names:
            return None
        column = file.read(columns=[TIME])[TIME]
        is_known_N, known = known_values(column, pa.int64())
    time_N = torch.full((len(column),), UNKNOWN)
    time_N[is_known_N] = known
    return time_N
