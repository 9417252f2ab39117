"""Dynamic batching of waiting requests. Queues are bounded; a request that does not fit is refused.

One batch runs at a time, in the one worker thread. When the worker is idle, a request starts
after the event loop has read what has already arrived: no timer delays it, and batches grow with
the load. After a batch of several requests, a small one waits while the loop still reads requests,
of those who have just got their answers: most of a small batch's time does not depend on its size.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from recsys_moe.serve.metrics import Metrics

logger = logging.getLogger("recsys_moe")
ENOUGH = 64
"""Rows of a batch that does not wait for more."""
QUIET_TURNS = 4
"""Turns of the event loop without a new request until a batch starts: from the end of a batch to
the first request of a client who got its answer there are three."""
Run = Callable[[list[Any]], list[Any]]
"""Requests -> their replies, in order. Must be safe to call again with a part of the requests."""


class Busy(Exception):
    """The queue is full, or all are."""


@dataclass
class Job:
    request: Any
    size: int
    reply: asyncio.Future[Any]


@dataclass
class Queue:
    """One kind of request. Sizes are counted in rows (pairs or users)."""

    name: str
    run: Run
    max_batch: int
    """Rows that run together; a larger request runs alone."""
    max_queue: int
    asked: Callable[[Any], Hashable] = lambda request: None
    """Requests of which this differs do not run together."""
    jobs: deque[Job] = field(default_factory=deque)
    waiting: int = 0
    _seen: int = 0
    _quiet: int = 0

    def is_growing(self) -> bool:
        """Is it worth while to look again in the next turn of the loop?"""
        self._quiet = 0 if self.waiting > self._seen else self._quiet + 1
        self._seen = self.waiting
        return self.waiting < min(ENOUGH, self.max_batch) and self._quiet < QUIET_TURNS

    def take(self) -> list[Job]:
        """The next batch, without requests that have timed out or were cancelled."""
        batch: list[Job] = []
        rows = self._seen = self._quiet = 0
        while self.jobs and (not batch or self._fits(self.jobs[0], batch[0], rows)):
            job = self.jobs.popleft()
            self.waiting -= job.size
            if not job.reply.done():
                batch.append(job)
                rows += job.size
        return batch

    def _fits(self, job: Job, first: Job, rows: int) -> bool:
        is_alike = self.asked(job.request) == self.asked(first.request)
        return is_alike and rows + job.size <= self.max_batch


class Batcher:
    """Runs the queues in turn, so that no kind of request starves another."""

    def __init__(self, queues: Sequence[Queue], metrics: Metrics, most: int = 1 << 30) -> None:
        """`most`: bound on unanswered requests of all queues."""
        self._most, self.open = most, 0
        self._queues = {queue.name: queue for queue in queues}
        self._turns = deque(queues)
        self._metrics = metrics
        for queue in queues:
            metrics.watch_queue(queue.name, functools.partial(getattr, queue, "waiting"))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._busy = self._lingers = False

    async def submit(self, name: str, request: Any, size: int, seconds: float) -> Any:
        """The reply to a request of `size` rows.

        Raises Busy when its queue or everything is full, TimeoutError when `seconds` have passed.
        """
        queue = self._queues[name]
        if self.full or queue.waiting + size > queue.max_queue:
            raise Busy
        loop = asyncio.get_running_loop()
        job = Job(request, size, loop.create_future())
        queue.jobs.append(job)
        self.open += 1
        queue.waiting += size
        if not self._busy:
            self._busy = True
            loop.call_soon(self._next)
        timer = loop.call_later(seconds, _expire, job.reply)
        try:
            return await job.reply
        finally:
            timer.cancel()
            self.open -= 1

    @property
    def full(self) -> bool:
        """Is the bound on unanswered requests reached?"""
        return self.open >= self._most

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        for _ in range(len(self._turns)):
            queue = self._turns[0]
            if queue.jobs and self._lingers and queue.is_growing():
                asyncio.get_running_loop().call_soon(self._next)
                return None
            self._turns.rotate(-1)
            if batch := queue.take():
                return self._start(queue, batch)
        self._busy = False

    def _start(self, queue: Queue, batch: list[Job]) -> None:
        self._lingers = len(batch) > 1
        rows = sum(job.size for job in batch)
        self._metrics.ran(queue.name, rows)
        loop = asyncio.get_running_loop()
        requests = [job.request for job in batch]
        running = loop.run_in_executor(self._worker, _attempt, queue.run, requests)
        running.add_done_callback(functools.partial(self._collect, batch))

    def _collect(self, batch: list[Job], running: asyncio.Future[list[Any]]) -> None:
        if running.cancelled():
            return
        for job, outcome in zip(batch, running.result(), strict=True):
            if job.reply.done():
                continue
            if isinstance(outcome, Exception):
                job.reply.set_exception(outcome)
            else:
                job.reply.set_result(outcome)
        asyncio.get_running_loop().call_soon(self._next)


def _expire(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


def _attempt(run: Run, requests: list[Any]) -> list[Any]:
    """The reply or the exception of each request: a failing request must not fail the others."""
    try:
        return run(requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        logger.warning(
            "a batch of %d requests failed; running them one by one: %r", len(requests), error
        )
        return [_attempt(run, [request])[0] for request in requests]
