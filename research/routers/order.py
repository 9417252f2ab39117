"""What is run next: decided by the finished rows alone, so that any session can go on.

1. One run of an earlier study again: are its rows those of today?
2. Two trials of each router that has none.
3. Contenders (best trial within CLOSE of the lowest): three seeds, six trials, five seeds; first
   those that compute few experts, as their runs are short.
4. All others: six trials, then five seeds.
5. MovieLens-100K at weights (.1, .9), five seeds of PAPER_PAIR routers.
6. MovieLens-1M, three seeds of every contender of MovieLens-100K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from research.routers.rows import WEIGHTS, Job, Row, best

Settings = Mapping[str, Mapping[str, object]]
Rows = Mapping[Job, Row]

SMALL, LARGE = "ml-100k", "ml-1m"
CLOSE = 0.01
MANY = 8
TRIALS, FIRST_SEEDS, SEEDS, LARGE_SEEDS = 6, 3, 5, 3
AGAIN = Job(SMALL, "moesart", "moesart_4", 0)
RATING_WEIGHTS = "0.1,0.9"
PAPER_PAIR = ("moesart", "pps", "topk", "softmax")


def remaining(settings: Settings, rows: Rows, new: Rows) -> list[Job]:
    """Jobs without a row, in the order of the plan as it stands; later rows may change it.

    `rows`: all that are known, `new`: those of this study alone.
    """
    jobs = dict.fromkeys(_plan(settings, rows))
    again = [] if AGAIN in new else [AGAIN]
    return again + [job for job in jobs if job != AGAIN and not _is_done(job, rows)]


def _is_done(job: Job, rows: Rows) -> bool:
    """A trial needs validation, a seed of the chosen setting test as well."""
    return job in rows and (rows[job]["loss"] is not None or job not in _seeds_needed(job, rows))


def _seeds_needed(job: Job, rows: Rows) -> set[Job]:
    """`job` itself where it is the chosen setting of its router and so belongs into the table."""
    return {job} if chosen(job.router, rows, job.log, job.weights) == job.setting else set()


def _plan(settings: Settings, rows: Rows) -> Iterator[Job]:
    unknown = [r for r in settings if not any(row.job.router == r for row in rows.values())]
    yield from _trials(unknown, settings, 2)
    first = contenders(settings, rows)
    for group in (quick(first, rows), first):
        yield from _seeds(group, rows, FIRST_SEEDS)
        yield from _trials(group, settings, TRIALS)
        yield from _seeds(group, rows, SEEDS)
    yield from _trials(list(settings), settings, TRIALS)
    yield from _seeds(list(settings), rows, SEEDS)
    yield from _ported(PAPER_PAIR, rows, (SMALL, RATING_WEIGHTS), SEEDS)
    yield from _ported(first, rows, (LARGE, WEIGHTS), LARGE_SEEDS)


def _trials(routers: list[str] | tuple[str, ...], settings: Settings, most: int) -> Iterator[Job]:
    for number in range(most):
        for router in routers:
            for label in list(settings.get(router, {}))[number : number + 1]:
                yield Job(SMALL, router, label, 0)


def _seeds(routers: list[str], rows: Rows, seeds: int) -> Iterator[Job]:
    yield from _ported(routers, rows, (SMALL, WEIGHTS), seeds)


def _ported(
    routers: list[str] | tuple[str, ...], rows: Rows, where: tuple[str, str], seeds: int
) -> Iterator[Job]:
    """Seeds of what validation chose for MovieLens-100K at the first weights."""
    for seed in range(seeds):
        for router in routers:
            if setting := chosen(router, rows):
                yield Job(where[0], router, setting, seed, where[1])


def chosen(router: str, rows: Rows, log: str = SMALL, weights: str = WEIGHTS) -> str | None:
    """The setting of the trial with the lowest validation loss, None without a trial."""
    of_router = [r for job, r in rows.items() if job == Job(log, router, job.setting, 0, weights)]
    found = best(of_router)
    return found.job.setting if found else None


def trials(router: str, rows: Rows) -> list[Row]:
    """Of MovieLens-100K at the first weights, seed 0."""
    return [row for job, row in rows.items() if job == Job(SMALL, router, job.setting, 0)]


def contenders(settings: Settings, rows: Rows) -> list[str]:
    """Routers whose best trial is within CLOSE of the lowest of all, the lowest first."""
    lowest = {router: best(trials(router, rows)) for router in settings}
    losses = {name: row["val.loss"] or 0.0 for name, row in lowest.items() if row is not None}
    limit = min(losses.values(), default=0.0) + CLOSE
    return sorted((name for name in losses if losses[name] <= limit), key=losses.__getitem__)


def quick(routers: list[str], rows: Rows) -> list[str]:
    """Those that do not compute most experts in training: the others take several times as long."""
    found = {router: best(trials(router, rows)) for router in routers}
    return [r for r, row in found.items() if row and (row["experts_training"] or 0) <= MANY]
