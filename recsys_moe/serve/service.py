"""The parts of a running service: the model, its queues, its limits, its counters."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from recsys_moe.errors import RunError, UserError
from recsys_moe.serve import http
from recsys_moe.serve.batcher import Batcher, Busy, Queue
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.model_info import ModelReply, describe
from recsys_moe.serve.models import Models
from recsys_moe.serve.replies import Reply
from recsys_moe.serve.request_types import Request
from recsys_moe.serve.scoring import Scoring, asked

logger = logging.getLogger("recsys_moe")
BATCH_ROWS = 1024
"""Pairs that run together: about 20 ms that another request may have to wait for them."""
BATCH_SCORES, MOST_USERS = 1 << 13, 32
"""Most users times items of the catalogue in a batch of lists, and most users: about as long."""


class Service:
    """What the routes call."""

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        limits: Limits,
        *,
        key: str | None = None,
        hosts: frozenset[bytes] | None = None,
    ) -> None:
        """`key`: the API key that requests must carry, if any. `hosts`: what `Host` may say."""
        self.models, self.metrics, self.limits = models, metrics, limits
        self.key, self.hosts = key, hosts
        self.draining = False
        scoring = Scoring(lambda: models.current, metrics)
        self._lists = Queue("recommend", scoring.recommend, 1, limits.max_queue_users, asked=asked)
        queues = [Queue("predict", scoring.predict, BATCH_ROWS, limits.max_queue), self._lists]
        for kind in ("explain", "similar", "seen"):
            run = functools.partial(_one_by_one, getattr(scoring, kind))
            queues.append(Queue(kind, run, 1, limits.max_queue_users))
        self.batcher = Batcher(queues, metrics, limits.max_requests)
        # In a thread of its own: waiting for a disk must not delay scores.
        events = Queue("events", scoring.observe, limits.max_rows, limits.max_queue)
        self._recorder = Batcher([events], metrics, limits.max_requests)

    def close(self) -> None:
        """No further requests run."""
        self.batcher.close()
        self._recorder.close()

    def describe(self) -> ModelReply:
        """What /model shows."""
        return describe(self.models.current, self.limits)

    async def answer(self, kind: str, request: Request) -> Reply:
        """Raises 422 for what the predictor refuses, 429 for a full queue, 504 when it is late."""
        seconds, most = self.limits.timeout, self.limits.max_queue_users
        # Users up to their limit and somebody new may be one more than can wait: not if alone.
        size = request.rows
        if kind == "recommend":
            size = min(size, most)
            self._lists.max_batch = self._users_at_once()  # another model has another catalogue
        try:
            batcher = self._recorder if kind == "events" else self.batcher
            reply: Reply = await batcher.submit(kind, request, size, seconds)
            return reply
        except Busy:
            message = f"too many {kind} requests are waiting; try again in a second"
            raise http.refuse(429, message, http.LATER) from None
        except TimeoutError:
            raise http.refuse(504, f"no answer within {seconds:g} s; ask for less") from None
        except RunError as error:
            logger.error("%s", error)
            raise http.refuse(503, "events cannot be stored now; send them again later") from None
        except UserError as error:
            raise http.refuse(422, str(error).removeprefix("--")) from None

    def _users_at_once(self) -> int:
        """Of a batch of lists; where rows compete, a batch of one request."""
        predictor = self.models.current.predictor
        most = BATCH_SCORES // len(predictor.items.ids) if predictor.rows_are_independent else 1
        return max(1, min(MOST_USERS, most))


def _one_by_one(answer: Callable[[Any], Reply], requests: list[Any]) -> list[Reply]:
    return [answer(request) for request in requests]
