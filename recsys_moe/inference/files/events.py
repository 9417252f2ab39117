"""A file of events for one command: what users did since the model was trained."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.events.journal import check_line, lines_of
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.predictor import Predictor

logger = logging.getLogger("recsys_moe")


def observe_file(predictor: Predictor, path: Path) -> None:
    """Let `predictor` see the events of a file as `serve --events` does, in the same form.

    The file is only read; no event is too old, no user is evicted, and popularity is known at any
    of its times. Raises ConfigError for a model that reads no events, DataError with the line.
    """
    store, reader = predictor.store, predictor.cold_users.events
    if store is None or reader is None:
        raise ConfigError(
            "--events needs a model that reads events, got one with model.sequence=none; omit it, "
            "or train with model.sequence=lru"
        )
    if not path.is_file():
        fault = "must be a file, got a folder" if path.is_dir() else "no such file"
        raise DataError(
            f"--events {path}: {fault}; pass a file that `serve --events` wrote, or one with a "
            "JSON object a line"
        )
    store.max_users = store.max_events = sys.maxsize
    store.keep(_checked(path, reader.check, store.check))
    logger.info("%s: events of %d user%s", path, len(store), "s"[len(store) == 1 :])


def _checked(path: Path, *checks: Callable[[Event], None]) -> Iterator[Event]:
    for number, (_, event) in enumerate(lines_of(path), 1):
        if event is None:
            logger.warning("%s: line %d is incomplete and was ignored", path, number)
            return
        for check in checks:
            check_line(event, check, (path, number))
        yield event
