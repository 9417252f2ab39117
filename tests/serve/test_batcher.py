"""Queues and batches are bounded; a request that fails does not fail the others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from recsys_moe.serve.batcher import ENOUGH, QUIET_TURNS, Batcher, Busy, Queue
from recsys_moe.serve.metrics import Metrics


class Doubling:
    """A model that takes 20 ms and fails with 13; it records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.running = False

    def __call__(self, requests: list[Any]) -> list[Any]:
        assert not self.running, "two batches run at once"
        self.running = True
        self.batches.append(requests)
        time.sleep(0.02)
        self.running = False
        if 13 in requests:
            raise ValueError("13")
        return [2 * request for request in requests]


def answers(
    queues: list[Queue],
    asked: list[tuple[str, Any]],
    *,
    seconds: float = 5.0,
    size: int = 1,
    most: int = 100,
) -> list[Any]:
    """Replies or errors of requests of `size` rows that arrive together, and of a later one."""

    async def go() -> list[Any]:
        batcher = Batcher(queues, Metrics(), most)
        try:
            work = (batcher.submit(name, request, size, seconds) for name, request in asked)
            replies = await asyncio.gather(*work, return_exceptions=True)
            return [*replies, await batcher.submit(asked[0][0], 50, 1, 5.0)]
        finally:
            batcher.close()

    return asyncio.run(go())


def test_requests_that_arrive_together_run_together_up_to_the_bound_of_rows() -> None:
    for size, most_rows, expected in ((1, 4, [4, 4, 2]), (3, 4, [1] * 10), (9, 4, [1] * 10)):
        run = Doubling()
        asked = [("a", number) for number in range(10)]
        replies = answers([Queue("a", run, most_rows, 100)], asked, size=size)
        assert replies == [*range(0, 20, 2), 100]
        assert [len(batch) for batch in run.batches] == [*expected, 1]


def test_what_exceeds_a_queue_or_all_queues_is_refused_and_the_rest_is_answered() -> None:
    asked = [("a", number) for number in range(4)]
    for size, max_queue, most, served in ((1, 3, 100, 3), (3, 8, 100, 2), (1, 100, 2, 2)):
        queues = [Queue("a", Doubling(), 1, max_queue)]
        *replies, later = answers(queues, asked, size=size, most=most)
        assert replies[:served] == [0, 2, 4][:served] and later == 100
        assert {type(reply) for reply in replies[served:]} == {Busy}
        assert (queues[0].waiting, len(queues[0].jobs)) == (0, 0)


def test_one_failing_request_fails_alone() -> None:
    one, bad, three, _ = answers([Queue("a", Doubling(), 8, 100)], [("a", n) for n in (1, 13, 3)])
    assert (one, three) == (2, 6) and isinstance(bad, ValueError)


def test_a_late_answer_is_a_timeout_and_a_request_without_a_reader_is_not_run() -> None:
    run = Doubling()
    *late, later = answers([Queue("a", run, 1, 100)], [("a", n) for n in (1, 2, 3)], seconds=0.01)
    assert {type(reply) for reply in late} == {TimeoutError}
    assert run.batches == [[1], [50]] and later == 100


def test_queues_take_turns() -> None:
    run = Doubling()
    queues = [Queue(name, run, 1, 100) for name in "ab"]
    answers(queues, [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5)])
    assert run.batches == [[1], [4], [2], [5], [3], [50]]


def test_one_batch_runs_at_a_time_and_the_event_loop_goes_on() -> None:
    run = Doubling()

    async def go() -> None:
        batcher = Batcher([Queue("a", run, 8, 100)], Metrics())
        large = asyncio.ensure_future(batcher.submit("a", 1, 8, 5.0))
        await asyncio.sleep(0.01)  # it is in the thread now
        assert run.batches == [[1]] and not large.done()
        assert await batcher.submit("a", 2, 1, 5.0) == 4
        assert await large == 2
        batcher.close()

    asyncio.run(go())


def closed_loop(queue: Queue, clients: int, rounds: int = 4) -> None:
    """Clients that ask again some turns of the loop after their answers."""

    async def client(batcher: Batcher, number: int) -> None:
        for _ in range(rounds):
            for _ in range(number % QUIET_TURNS):
                await asyncio.sleep(0)
            assert await batcher.submit("a", number + 20, 1, 5.0) == 2 * number + 40

    async def go() -> None:
        batcher = Batcher([queue], Metrics())
        await asyncio.gather(*(client(batcher, number) for number in range(clients)))
        batcher.close()

    asyncio.run(go())


def test_clients_who_ask_again_share_a_batch() -> None:
    run = Doubling()
    closed_loop(Queue("a", run, 1024, 100), clients=9)
    assert {len(batch) for batch in run.batches[1:-1]} == {9}


def test_a_batch_that_is_full_or_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue("a", Doubling(), 1024, 100, waiting=ENOUGH)
    assert not queue.is_growing()
    assert not Queue("a", Doubling(), 8, 100, waiting=8).is_growing()
    monkeypatch.setattr(Queue, "is_growing", lambda self: pytest.fail("waits"))
    closed_loop(Queue("a", Doubling(), 1024, 100), clients=1)


def test_a_small_batch_waits_until_some_turns_bring_nothing() -> None:
    queue = Queue("a", Doubling(), 1024, 100, waiting=2)
    assert [queue.is_growing() for _ in range(QUIET_TURNS)] == [True] * QUIET_TURNS
    queue.waiting = 3
    assert [queue.is_growing() for _ in range(QUIET_TURNS + 1)] == [True] * QUIET_TURNS + [False]
