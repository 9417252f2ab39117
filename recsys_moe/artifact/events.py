"""events.safetensors: the last events of each user in the training and validation rows.

`first` (U + 1), int64, and `item` int32, `value` float32, `time` int64 (P,): user u has the events
first[u]:first[u + 1], by time.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from recsys_moe.artifact.reading import damaged, reading_model
from recsys_moe.data.events import EventLog
from recsys_moe.data.item_past import Known
from recsys_moe.schema import Schema

TYPES = {"first": torch.int64, "item": torch.int32, "value": torch.float32, "time": torch.int64}


def last_events(log: EventLog, length: int) -> dict[str, Tensor]:
    """What is stored: at most `length` events of each user, the last ones."""
    end_U = log.first_U[1 : log.num_users + 1]
    start_U = torch.maximum(log.first_U[: log.num_users], end_U - length)
    count_U = end_U - start_U
    first = torch.cat([count_U.new_zeros(1), count_U.cumsum(0)])
    place_P = torch.arange(int(first[-1])) + (start_U - first[:-1]).repeat_interleave(count_U)
    columns = {"item": log.item_P, "value": log.value_P, "time": log.time_P}
    stored = {name: column_P[place_P] for name, column_P in columns.items()}
    return {name: one.to(TYPES[name]) for name, one in {"first": first, **stored}.items()}


def no_events(schema: Schema) -> dict[str, Tensor]:
    """Of a folder without the file."""
    size = {"first": schema.user.size + 1}
    return {name: torch.zeros(size.get(name, 0), dtype=kind) for name, kind in TYPES.items()}


def load_events(path: Path, schema: Schema, are_read: bool) -> dict[str, Tensor]:
    """Empty for a model that reads none. Raises DataError for a file that is missing or does not
    fit the schema."""
    if not are_read:
        return {}
    with reading_model(path):
        events = load_file(path)
        is_whole = {name: one.dtype for name, one in events.items()} == TYPES
        is_whole = is_whole and _fits(events, schema)
    if not is_whole:
        raise damaged(path, "the events do not match schema.json")
    return events


def load_items(path: Path, schema: Schema, are_read: bool) -> Known | None:
    """None for a model that reads neither age nor popularity of items. Raises DataError."""
    if not are_read:
        return None
    with reading_model(path):
        found = load_file(path)
        every = (schema.item.size + 1,)
        wanted = {
            "first": (torch.float64, every),
            "popularity": (torch.float32, every),
            "end": (torch.float64, (1,)),
        }
        if "total" in found:
            wanted["total"] = wanted["end"]
        is_whole = {name: (one.dtype, (*one.shape,)) for name, one in found.items()} == wanted
    if not is_whole:
        raise damaged(path, "the items do not match schema.json")
    return Known(**found)


def _fits(events: dict[str, Tensor], schema: Schema) -> bool:
    first, columns = events["first"], [events[name] for name in ("item", "value", "time")]
    fits = first.shape == (schema.user.size + 1,) and bool((first.diff() >= 0).all())
    fits = fits and all(one.shape == (int(first[-1]),) for one in columns)
    return fits and int(first[0]) == 0 and _in_range(events["item"], schema.item.size)


def _in_range(index_P: Tensor, size: int) -> bool:
    return bool(((index_P >= 0) & (index_P <= size)).all())
