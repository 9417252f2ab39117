"""What options of `recommend` name: new items, candidates, a context, a new user."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys_moe.errors import ConfigError, DataError

if TYPE_CHECKING:
    from recsys_moe.inference.cold_start.whom import Resolved
    from recsys_moe.inference.predictor import ColdUser, Predictor
logger = logging.getLogger("recsys_moe")


def with_items_of(predictor: Predictor, items: Path | None) -> Predictor:
    """With new items from a file; what is in it is counted on stderr."""
    from recsys_moe.inference.cold_start.new_items import read_items, with_items

    if items is None:
        return predictor
    extended = with_items(predictor, read_items(items))
    logger.info(
        "new items added to the catalogue: %d (with an unknown category: %d); already known: %d",
        *(extended.new, extended.unknown_category, extended.known),
    )
    return extended.predictor


def candidates_of(predictor: Predictor, candidates: str | None) -> Resolved | None:
    """Ids from a file or from the option itself; unknown ones are counted on stderr."""
    from recsys_moe.inference.files.recommend import names_ids_file, read_ids

    if candidates is None:
        return None
    if names_ids_file(candidates):
        ids = list(read_ids(Path(candidates), "item", "--candidates"))
    else:
        ids = [part.strip() for part in candidates.split(",") if part.strip()]
    if not ids:
        raise ConfigError(f"--candidates must be items or a file of items, got {candidates!r}")
    resolved = predictor.resolve(ids, entity="item")
    if unknown := int((resolved.index_N == predictor.items.feature.size).sum()):
        logger.info("ignored %d of %d candidates: unknown to the model", unknown, len(ids))
    return resolved


def context_of(predictor: Predictor, options: list[str], time: str | None) -> dict[str, Any]:
    """Of all users; unknown categories are named on stderr."""
    from recsys_moe.inference.cold_start.options import parse_features, unused_lines
    from recsys_moe.inference.cold_start.whom import Unused

    found: dict[str, Any] = parse_features(options, "--context", "device=tv")
    if time is not None:
        if not predictor.context.reads_time:
            raise ConfigError(
                f"--time {time} needs a model that reads times or events, got one with "
                "model.time_features=none and model.sequence=none; omit it, or train with either"
            )
        if "time" in found:
            raise ConfigError(
                f"the time must be given once, got --time {time} and --context "
                f"time={found['time']}; omit one"
            )
        found["time"] = _seconds(time)
    unknown = predictor.context.read_rows(found, 1).unknown
    for line in unused_lines(Unused(unknown.get(0, {}))):
        logger.info("%s", line)
    return found


def _seconds(time: str) -> float:
    from recsys_moe.inference.context import seconds_of

    try:
        return seconds_of(time or "''")
    except DataError as error:  # which begins with the name
        raise ConfigError(f"--{error}") from None


def cold_user(history: str | None, features: list[str]) -> ColdUser:
    from recsys_moe.inference.cold_start.options import parse_features, parse_history
    from recsys_moe.inference.cold_start.whom import ColdUser

    return ColdUser(parse_features(features), parse_history(history))
