"""history.safetensors: the rows of the bag tables in the vectors of known users and items.

Names: `first` and `row` of users, `item_first` and `item_row` of items, as `BagEntries` of
`recsys_moe.data.entries`. Their tables and kernels are among the encoders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from recsys_moe.artifact.reading import damaged, reading_model
from recsys_moe.schema import Schema

ENCODER = {"user": "item_bag", "item": "user_bag"}
"""By entity: which setting of the model, and part of its encoders, it is."""
PREFIX = {"user": "", "item": "item_"}


def load_history(path: Path, schema: Schema, encoders: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Empty without the file. Raises DataError for one that does not fit the schema."""
    if not path.is_file():
        return {}
    sizes = {"user": schema.user.size, "item": schema.item.size}
    with reading_model(path):
        history = load_file(path)
        is_whole = all(
            _is_whole(history, entity, encoders[f"{key}.table_RW"], sizes[entity])
            for entity, key in ENCODER.items()
            if f"{key}.table_RW" in encoders
        )
    if not is_whole:
        raise damaged(path, "the histories do not match schema.json")
    return history


def _is_whole(history: Mapping[str, Tensor], entity: str, table_RW: Tensor, size: int) -> bool:
    first, row = (history[PREFIX[entity] + name] for name in ("first", "row"))
    is_whole = first.shape == (size + 2,) and first.dtype == torch.int64
    is_whole &= row.dim() == 1 and row.dtype == torch.int32
    is_whole = is_whole and bool((first.diff() >= 0).all())
    is_whole &= [int(first[0]), int(first[-1])] == [0, len(row)]
    return is_whole and bool(((row >= 0) & (row < len(table_RW))).all())


def are_missing(history: Mapping[str, Tensor], encoders: Mapping[str, Tensor]) -> bool:
    """Is there a table of histories, and not who has which rows of it?"""
    return any(
        f"{key}.table_RW" in encoders and not has_rows(history, entity)
        for entity, key in ENCODER.items()
    )


def has_rows(history: Mapping[str, Tensor], entity: str) -> bool:
    return PREFIX[entity] + "row" in history


def rows_of(history: Mapping[str, Tensor], entity: str, index: int) -> Tensor:
    """Rows (P,) int64 of the table of histories of a known user or item."""
    if not has_rows(history, entity):
        return torch.empty(0, dtype=torch.int64)
    first, row = (history[PREFIX[entity] + name] for name in ("first", "row"))
    return row[int(first[index]) : int(first[index + 1])].long()


def pooled(encoders: Mapping[str, Tensor], entity: str, rows: Sequence[Tensor]) -> Tensor:
    """K |N(u)|^-1/2 sum of the rows of each history, as ItemBag adds it to the vectors; 0 of an
    empty one. `rows`: (P,) int64 each. (U, D)"""
    size_U = torch.tensor([len(one) for one in rows], dtype=torch.long)
    row_P, start_U = torch.cat([torch.empty(0).long(), *rows]), size_U.cumsum(0) - size_U
    table_RW, kernel_DW = (
        encoders[f"{ENCODER[entity]}.{name}"] for name in ("table_RW", "kernel_DW")
    )
    sum_UW = F.embedding_bag(row_P, table_RW, start_U, mode="sum")
    return F.linear(sum_UW * size_U.clamp(min=1).rsqrt()[:, None], kernel_DW)
