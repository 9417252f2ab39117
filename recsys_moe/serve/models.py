"""The model in use, and its replacement without a dropped request.

A batch takes the current model once and keeps it, so a replacement drops nothing. A new model is
loaded, checked and warmed up while the old one serves; if any of that fails, the old one stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recsys_moe.artifact.manifest import MANIFEST, check_files, find_artifact
from recsys_moe.errors import DataError, UserError
from recsys_moe.inference.attribution.expert_profiles import ExpertProfile, expert_profiles
from recsys_moe.inference.events.store import EventStore
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.inference.ranking.item_values import ItemColumn, item_columns
from recsys_moe.serve.metrics import Metrics

logger = logging.getLogger("recsys_moe")


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to answer."""

    predictor: Predictor
    version: str
    profiles: list[ExpertProfile]
    columns: list[ItemColumn]
    retrieve: int | None = None
    """Items per user that lists by the default score are ranked from; None: all."""


class Models:
    """Holds the current model of a run folder or model folder."""

    def __init__(
        self,
        path: Path,
        metrics: Metrics,
        settle: Callable[[], None] = lambda: None,
        store: EventStore | None = None,
        *,
        retrieve: int | None = None,
    ) -> None:
        """`settle` is called after each change; `store`: of observed events, which outlive a
        model; `retrieve`: see `Loaded`. Raises UserError for a model that is unusable."""
        store = EventStore(1) if store is None else store
        self.path, self._load = path, partial(load, path, store, retrieve)
        self._settle = settle
        self._metrics = metrics
        self._replacing = asyncio.Lock()
        self._refused = ""
        self._use(self._load())

    def _use(self, loaded: Loaded) -> None:
        self.current = loaded
        self._metrics.model(loaded.version)
        self._settle()

    async def reload(self) -> bool:
        """Load what the folder holds now; False if that is already in use.

        Raises UserError and keeps the old model if the new one cannot be used.
        """
        async with self._replacing:
            version = fingerprint(self.path)
            try:
                if version == self.current.version:
                    await asyncio.to_thread(check_files, find_artifact(self.path))
                    return False
                self._refused = version  # until it is in use
                self._use(await asyncio.to_thread(self._load))
            except UserError as error:
                self._metrics.reloaded("refused")
                logger.error("new model refused, the old one stays in use: %s", error)
                raise
            self._metrics.reloaded("done")
            logger.info("now serving model %s", self.current.version)
            return True

    async def watch(self, seconds: float) -> None:
        """Check the manifest every `seconds`; a refused model is not tried again."""
        while True:
            await asyncio.sleep(seconds)
            await self.follow()

    async def follow(self) -> None:
        """`reload` in the background: errors are logged once, not raised."""
        try:
            if fingerprint(self.path) not in (self._refused, self.current.version):
                await self.reload()
        except UserError:
            pass  # `reload` logged it, or the folder is being replaced right now
        except Exception:
            logger.exception("the new model cannot be loaded; the old one stays in use")


def load(path: Path, store: EventStore | None = None, retrieve: int | None = None) -> Loaded:
    """Load, check and warm up. Raises DataError if the model cannot be used, ConfigError if it
    cannot `retrieve`."""
    version = fingerprint(path)
    predictor = Predictor.load(path, store)
    _try_out(predictor, path)
    predictor.warm_up()
    if retrieve is not None:
        predictor.recommend([ColdUser()], 1, retrieve=retrieve)  # builds its index
    if fingerprint(path) != version:
        raise DataError(f"{path} changed while it was being read; reload it")
    columns = item_columns(predictor.artifact.items)
    return Loaded(predictor, version, expert_profiles(predictor), columns, retrieve)


def fingerprint(path: Path) -> str:
    """12 hexadecimal digits of the manifest's SHA-256. Raises DataError when there is none."""
    file = find_artifact(path) / MANIFEST
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None


def _try_out(predictor: Predictor, path: Path) -> None:
    """Refuse a model with NaN or infinite parameters or scores. Raises DataError."""
    for name, parameter in predictor.artifact.model.named_parameters():
        if not parameter.isfinite().all():
            raise DataError(f"{path}: {name} has values that are not finite; train the model again")
    users = predictor.users.ids[:64].to_pylist()
    items = predictor.items.ids[: len(users)].to_pylist()
    scores = predictor.score(users[: len(items)], items)
    for task, values in scores.tasks.items():
        if not values.isfinite().all():
            raise DataError(f"{path}: scores of task {task} are not finite; train the model again")
