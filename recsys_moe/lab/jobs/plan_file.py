"""plan.json: ensures that a restart of `compare` or `tune` does not mix results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recsys_moe.config.diff import shown
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, DataError, UserError
from recsys_moe.files import check_place

PLAN_FILE = "plan.json"
FORMAT_VERSION = 1
AUTOMATIC = "automatic"
"""In plan.json: whether settings that are left out follow the data."""
Raw = dict[str, Any]


def check_folder(out: Path, kind: str) -> None:
    """Raise ConfigError if `out` holds anything but a `kind`, e.g. comparison."""
    check_place(out)
    if not out.exists() or (out / PLAN_FILE).is_file():
        return
    if not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir()):
        raise ConfigError(f"--out {out} exists and is not a {kind}; choose another folder")


@contextmanager
def saved_plan(out: Path, verb: str) -> Iterator[Raw]:
    """Read OUT/plan.json; errors in the block mean that it is damaged.

    `verb`: compare or tune. Raises ConfigError.
    """
    file = out / PLAN_FILE
    try:
        raw: Raw = json.loads(file.read_text(encoding="utf-8"))
        if raw["format_version"] != FORMAT_VERSION:
            raise ConfigError(f"{file} has another format version; {verb} into another folder")
        yield raw
    except UserError:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ConfigError(f"{file} is damaged; {verb} into another folder") from None


def follows_data(out: Path) -> bool:
    """Whether settings that are left out follow the data.

    Not in a folder that was begun when they had fixed defaults, which its runs have.
    """
    if not (out / PLAN_FILE).is_file():
        return True
    try:
        raw = json.loads((out / PLAN_FILE).read_text(encoding="utf-8"))
        return bool(raw.get(AUTOMATIC, False))
    except (AttributeError, RecursionError, ValueError):  # damaged, which `saved_plan` says
        return True


def completed(config: Raw, out: Path) -> Raw:
    """The configuration of a plan, with the defaults of newer settings.

    Raises ConfigError.
    """
    try:
        return parse_config(config).model_dump(mode="json")
    except ConfigError as error:
        raise ConfigError(f"{out / PLAN_FILE}: {error}") from None


def check_files(before: Mapping[str, str], now: Mapping[str, str], out: Path) -> None:
    """Raise DataError naming the first file of the data that differs; hashes by path."""
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            raise DataError(f"--out {out} has other data: {path} differs; choose another --out")


def check_settings(before: Raw, now: Raw, of: str) -> None:
    """Raise ConfigError naming the first setting that differs, by its dotted key or as an option,
    with dashes. `of`: whose they are.

    A setting of the configuration may differ that nobody typed, as what `auto` chooses follows the
    machine too: the remedy says how to give it.
    """
    for setting in sorted(before.keys() | now.keys()):
        was, got = before.get(setting), now.get(setting)
        if was != got:
            can_set = setting in before and not setting.startswith("-")
            word = shlex.quote(f"{setting}={shown(before, setting)}") if can_set else ""
            give = f" or add --set {word}" if word else ""
            rule = f"{setting} of {of} must stay {was}, got {got}"
            raise ConfigError(f"{rule}; choose another --out{give}")
