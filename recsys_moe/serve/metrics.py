"""The metrics of /metrics, in Prometheus text format. One registry per service."""

from __future__ import annotations

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import generate_latest as _text

from recsys_moe.inference.events.store import Observed

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Metrics:
    """Counters of one service; every name starts with `recsys_moe_`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = functools.partial(Counter, registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        histogram = functools.partial(Histogram, registry=registry)
        requests = counter("recsys_moe_requests", "Answered requests.", ["route", "status"])
        words = "Seconds from request to end of the answer."
        seconds = histogram("recsys_moe_request_seconds", words, ["route"], buckets=SECONDS)
        rows = histogram("recsys_moe_batch_rows", "Rows of a batch.", ["kind"], buckets=ROWS)
        self._queue = gauge("recsys_moe_queue_rows", "Rows waiting in the queue.", ["kind"])
        self._unseen = counter("recsys_moe_unseen_ids", "Ids unknown in training.", ["of"])
        words = "Events by what became of them."
        self._events = counter("recsys_moe_events", words, ["result"])
        self._reloads = counter("recsys_moe_reloads", "Reloads of the model.", ["result"])
        self._model = gauge("recsys_moe_model", "1 for the model in use.", ["version"])
        # Looking up labels costs more than counting: cache the lookups.
        self._answer = functools.lru_cache(1024)(requests.labels)
        self._timer = functools.lru_cache(64)(seconds.labels)
        self._rows = functools.lru_cache(64)(rows.labels)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._answer(route, str(status)).inc()
        self._timer(route).observe(seconds)

    def ran(self, kind: str, rows: int) -> None:
        self._rows(kind).observe(rows)

    def unseen(self, of: str, count: int) -> None:
        if count:
            self._unseen.labels(of).inc(count)

    def observed(self, events: Observed) -> None:
        for result, count in (
            ("stored", events.stored),
            ("duplicate", events.duplicates),
            ("rejected", len(events.rejected)),
        ):
            self._events.labels(result).inc(count)

    def reloaded(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def model(self, version: str) -> None:
        self._model.clear()
        self._model.labels(version).set(1)

    def watch_queue(self, kind: str, rows: Callable[[], float]) -> None:
        self._queue.labels(kind).set_function(rows)

    def text(self) -> bytes:
        return _text(self._registry)
