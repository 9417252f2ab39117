"""The plan of a backtest; plan.json ensures that a restart does not mix periods.

Axes: N rows of all splits, M rows from the start on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.periods import check_periods, period_of
from recsys_moe.artifact.run_folder import data_hashes
from recsys_moe.cells import times
from recsys_moe.config.diff import flat
from recsys_moe.config.settings import Config
from recsys_moe.data.times import row_times
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.files import write_json
from recsys_moe.lab.jobs.plan_file import (
    AUTOMATIC,
    FORMAT_VERSION,
    PLAN_FILE,
    Raw,
    check_files,
    check_settings,
    completed,
    saved_plan,
)
from recsys_moe.schema import SPLITS, Schema

UPDATES = ("none", "continue", "retrain")
"""What happens to the model after a period: nothing; it goes on training on all rows so far; it is
trained from scratch on them."""


@dataclass(frozen=True, kw_only=True)
class BacktestRequest:
    """The arguments of `backtest`."""

    config: Config
    start: str
    """Time of the first row that is predicted, or the share of the rows that lie before it."""
    periods: int
    updates: Sequence[str] = UPDATES
    continue_epochs: int = 1
    """Of each training of `continue`, >= 1."""


@dataclass(frozen=True)
class BacktestPlan:
    """What must not change between restarts."""

    files: dict[str, str]
    """SHA-256 of the data's files."""
    config: Raw
    """Resolved configuration of all runs."""
    starts: list[int]
    """Seconds since 1970 of the first row of each period."""
    continue_epochs: int

    def to_json(self) -> Raw:
        return {"format_version": FORMAT_VERSION, AUTOMATIC: True, **vars(self)}


def make_plan(request: BacktestRequest, data: Path) -> BacktestPlan:
    """Validate everything before the first run. Raises ConfigError and DataError."""
    schema = Schema.load(data)
    check_timed(schema, data)
    check_periods(request.periods)
    if request.continue_epochs < 1:
        raise ConfigError(f"--continue-epochs must be at least 1, got {request.continue_epochs}")
    find_monitor(request.config.trainer.monitor, schema)
    time_N = torch.cat([row_times(data, split, "backtest") for split in SPLITS])
    starts = period_starts(time_N, request.start, request.periods)
    config = request.config.model_dump(mode="json")
    return BacktestPlan(data_hashes(data), config, starts, request.continue_epochs)


def parse_updates(text: str) -> list[str]:
    """`none,retrain` -> the updates, in the order of UPDATES. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in UPDATES:
            raise ConfigError(f"--update must be of {', '.join(UPDATES)}, got {name!r}")
    return [update for update in UPDATES if update in names]


def check_timed(schema: Schema, data: Path) -> None:
    """Raise DataError for a folder without the order of its users' rows."""
    if not schema.events:
        raise DataError(
            f"backtest needs prepared data with the time of every row, got {data} of --protocol "
            f"{schema.protocol}; prepare the data with times and --protocol time"
        )


def period_starts(time_N: Tensor, start: str, count: int) -> list[int]:
    """First second of each period of the rows from `start` on; fewer than `count` where times do
    not differ enough. Raises ConfigError where no row is before `start`, or none after."""
    first = _moment(start, time_N)
    time_M = time_N[time_N >= first]
    if not 0 < len(time_M) < len(time_N):
        low, high = (text_of(int(end)) for end in (time_N.min(), time_N.max()))
        raise ConfigError(
            f"--start must lie after the first row and not after the last one, {low} to {high}, "
            f"got {start}; choose a time between, or a share such as 0.8"
        )
    period_M = period_of(time_M, count)
    return [int(time_M[period_M == period].min()) for period in range(int(period_M.max()) + 1)]


def _moment(start: str, time_N: Tensor) -> int:
    """Seconds since 1970 of a share of the rows, or of a time as `prepare` reads it."""
    with suppress(ValueError):
        if 0 < (share := float(start)) < 1:
            return int(time_N.sort().values[int(share * len(time_N))])
    found = times(pa.array([start]))
    if found.wrong[0] or found.missing[0] or found.nanoseconds[0]:
        raise ConfigError(
            "--start must be a date such as 2024-05-01 or 2024-05-01T12:00 (UTC), seconds since "
            f"1970, or a share between 0 and 1 such as 0.8, got {start!r}"
        )
    return int(found.seconds[0])


def text_of(seconds: int) -> str:
    """As --start takes it."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def settle(plan: BacktestPlan, out: Path) -> None:
    """Match `plan` with OUT/plan.json, or write it there.

    Raises ConfigError or DataError naming the first difference.
    """
    if not (out / PLAN_FILE).is_file():
        write_json(out / PLAN_FILE, plan.to_json())
        return
    with saved_plan(out, "backtest") as before:
        if "starts" not in before:
            raise ConfigError(f"--out {out} is not a backtest; backtest into another folder")
        before["config"] = completed(before["config"], out)
        check_files(before["files"], plan.files, out)
        check_settings(_settings(before), _settings(json.loads(json.dumps(vars(plan)))), str(out))


def _settings(plan: Raw) -> Raw:
    """What must not change, in the user's spelling."""
    starts = {
        "--periods (those with rows)": len(plan["starts"]),
        "--start": text_of(plan["starts"][0]),
        "--start (of each period)": plan["starts"],
    }
    return {**starts, "--continue-epochs": plan["continue_epochs"], **dict(flat(plan["config"]))}
