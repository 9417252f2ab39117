"""Reads the event log of a prepared folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from recsys_moe.data.columns import StoredColumns
from recsys_moe.data.entries import is_event
from recsys_moe.data.events import EventLog, TimedRows
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import rating_task
from recsys_moe.schema import EVENT, SPLITS, Schema


def read_log(folder: Path, schema: Schema, splits: Sequence[str] = SPLITS) -> EventLog:
    """The events of some splits: positives and rated rows, with the standardised rating.

    Raises ConfigError for a folder without the order of events.
    """
    if not schema.events:
        raise ConfigError(
            "model.sequence and model.time_features need prepared data with times in order (column "
            f"{EVENT}), got {folder} of --protocol {schema.protocol}; prepare with --protocol time "
            "or leave-last"
        )
    parts = (one for split in splits for one in read_events(folder, schema, split))
    return EventLog.of(parts, schema.user.size)


def rating_scale(schema: Schema) -> tuple[float, float]:
    """Mean and deviation of training by which the ratings of events are standardised; 0 and 1
    without a rating task."""
    rated = rating_task(schema.tasks)
    if rated is None:
        return 0.0, 1.0
    counts = schema.counts("train", schema.tasks[rated].name, "mean", "std")
    return counts["mean"], counts["std"] or 1.0


def read_events(folder: Path, schema: Schema, split: str) -> Iterator[TimedRows]:
    stored, rated = StoredColumns(folder, schema, split), rating_task(schema.tasks)
    mean, std = rating_scale(schema)
    for number, rows in enumerate(stored.chunks()):
        event_N, time_N = stored.times(number)
        kept_N = is_event(rows, schema)
        value_N = torch.full((len(rows),), torch.nan)
        if rated is not None:
            value_N = (rows.labels[:, rated] - mean) / std
        columns = (rows.user, rows.item, value_N, time_N, event_N)
        yield TimedRows(*(column[kept_N] for column in columns))
