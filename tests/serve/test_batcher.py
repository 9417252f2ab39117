"""What waits is bounded, what runs together is bounded, one failure stays one failure."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from recsys_moe.serve.batcher import Batcher, Busy, Queue
from recsys_moe.serve.metrics import Metrics


def doubled(requests: list[Any]) -> list[Any]:
    """A model that takes 20 ms, and does not like 13."""
    time.sleep(0.02)
    if 13 in requests:
        raise ValueError("13")
    return [2 * request for request in requests]


def together(queue: Queue, *requests: Any, seconds: float = 5.0, size: int = 1) -> list[Any]:
    async def go() -> list[Any]:
        batcher = Batcher([queue], Metrics())
        try:
            work = (batcher.submit(queue.name, request, size, seconds) for request in requests)
            return await asyncio.gather(*work, return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(go())


def test_requests_of_one_moment_run_together_up_to_the_bound() -> None:
    seen: list[int] = []

    def counted(requests: list[Any]) -> list[Any]:
        seen.append(len(requests))
        return doubled(requests)

    assert together(Queue("a", counted, 4, 100), *range(10)) == [2 * n for n in range(10)]
    assert seen == [4, 4, 2]


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    assert together(Queue("a", doubled, 4, 100), 1, 2, size=9) == [2, 4]


def test_what_does_not_fit_the_queue_is_refused_at_once_and_the_rest_is_answered() -> None:
    replies = together(Queue("a", doubled, 1, 3), *range(5))
    assert replies[:3] == [0, 2, 4]
    assert [type(reply) for reply in replies[3:]] == [Busy, Busy]


def test_one_failing_request_fails_alone() -> None:
    replies = together(Queue("a", doubled, 8, 100), 1, 13, 3)
    assert (replies[0], replies[2]) == (2, 6)
    assert isinstance(replies[1], ValueError)


def test_a_late_answer_is_a_timeout_and_what_nobody_waits_for_is_not_run() -> None:
    """The worker is free again after 0.2 s, when the other two have given up."""
    ran: list[Any] = []

    def noted(requests: list[Any]) -> list[Any]:
        ran.extend(requests)
        time.sleep(0.2)
        return requests

    async def go() -> list[Any]:
        batcher = Batcher([Queue("a", noted, 1, 100)], Metrics())
        work = (batcher.submit("a", number, 1, 0.1) for number in (1, 2, 3))
        replies = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.sleep(0.5)
        batcher.close()
        return replies

    assert {type(reply) for reply in asyncio.run(go())} == {TimeoutError}
    assert ran == [1]


def test_bounds_count_rows_and_not_requests() -> None:
    """Room for 8 rows: two requests of 3 wait, a third is refused; a batch of 4 takes one of 3."""
    seen: list[int] = []

    def counted(requests: list[Any]) -> list[Any]:
        seen.append(len(requests))
        return requests

    replies = together(Queue("a", counted, 4, 8), 1, 2, 3, size=3)
    assert [type(reply) for reply in replies] == [int, int, Busy]
    assert seen == [1, 1]


def test_lanes_take_turns() -> None:
    order: list[str] = []

    def run(name: str) -> Any:
        def noted(requests: list[Any]) -> list[Any]:
            order.append(name)
            return requests

        return noted

    async def go() -> None:
        batcher = Batcher([Queue(name, run(name), 1, 100) for name in "ab"], Metrics())
        work = [batcher.submit(name, 0, 1, 5.0) for name in ("a", "a", "a", "b", "b")]
        await asyncio.gather(*work)
        batcher.close()

    asyncio.run(go())
    assert order == ["a", "b", "a", "b", "a"]


def test_the_queue_is_empty_again_afterwards() -> None:
    queue = Queue("a", doubled, 1, 3)
    together(queue, *range(5))
    assert (queue.waiting, len(queue.jobs)) == (0, 0)


def test_one_batch_runs_at_a_time() -> None:
    """A request that comes while the worker is busy waits, and the event loop does not."""
    running: list[int] = []
    most: list[int] = []

    def slow(requests: list[int]) -> list[int]:
        running.append(1)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        return requests

    async def go() -> None:
        batcher = Batcher([Queue("a", slow, 8, 100)], Metrics())
        large = asyncio.ensure_future(batcher.submit("a", 1, 8, 5.0))
        await asyncio.sleep(0.03)  # it is in the thread now
        assert most == [1] and not large.done()
        assert await batcher.submit("a", 2, 1, 5.0) == 2
        assert await large == 1
        batcher.close()

    asyncio.run(go())
    assert most == [1, 1]


def test_rows_are_counted() -> None:
    metrics = Metrics()

    async def go() -> None:
        batcher = Batcher([Queue("a", doubled, 8, 100)], metrics)
        for size in (1, 2, 5):
            await batcher.submit("a", 1, size, 5.0)
        batcher.close()

    asyncio.run(go())
    text = metrics.text().decode()
    assert 'recsys_moe_batch_rows_count{kind="a"} 3.0' in text
    assert 'recsys_moe_batch_rows_sum{kind="a"} 8.0' in text  # 1 + 2 + 5


def test_requests_of_all_lanes_together_are_bounded_and_answered_ones_count_no_more() -> None:
    async def go() -> list[Any]:
        batcher = Batcher([Queue(name, doubled, 1, 100) for name in "ab"], Metrics(), most=2)
        try:
            asked = [batcher.submit(name, 1, 1, 5.0) for name in "aba"]
            replies = await asyncio.gather(*asked, return_exceptions=True)
            return [*replies, batcher.full, await batcher.submit("a", 4, 1, 5.0)]
        finally:
            batcher.close()

    first, second, third, full, later = asyncio.run(go())
    assert (first, second, full, later) == (2, 2, False, 8)
    assert isinstance(third, Busy)
