"""What is run next: decided by the finished rows alone, so that any session can go on.

1. One run of an earlier study again: are its rows those of today?
2. Two trials of each router that has none.
3. Contenders (best trial within CLOSE of the lowest): three seeds, six trials, five seeds; first
   those that compute few experts, as their runs are short.
4. All others: six trials, then five seeds.
5. MovieLens-100K at weights (.1, .9), five seeds of RATING_ROUTERS.
6. Does routing matter? Configurations of routing.yaml by tasks, experts and rows, three seeds.
7. MovieLens-1M, three seeds of every contender of MovieLens-100K, then those of 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from research.routers.logs import LOGS, WEIGHTS_OF
from research.routers.rows import WEIGHTS, Job, Row, best

Settings = Mapping[str, Mapping[str, object]]
Rows = Mapping[Job, Row]

SMALL, LARGE = "ml-100k", "ml-1m"
MATTER = "matter_"
"""Start of the names of routing.yaml."""
CLOSE = 0.01
MANY = 8
TRIALS, FIRST_SEEDS, SEEDS, LARGE_SEEDS = 6, 3, 5, 3
AGAIN = Job(SMALL, "moesart", "moesart_4", 0)
RATING_WEIGHTS = "0.1,0.9"
RATING_ROUTERS = ("moesart", "pps", "topk", "softmax")


def remaining(
    settings: Settings, rows: Rows, new: Rows, matter: Settings | None = None
) -> list[Job]:
    """Jobs without a row, in the order of the plan as it stands; later rows may change it.

    `rows`: all that are known, `new`: those of this study alone.
    """
    return [job for jobs in stages(settings, rows, new, matter or {}).values() for job in jobs]


def stages(settings: Settings, rows: Rows, new: Rows, matter: Settings) -> dict[str, list[Job]]:
    """What is left of each stage, in their order; no job stands in two."""
    left: dict[str, list[Job]] = {"a run of an earlier study again": []}
    if AGAIN not in new:
        left["a run of an earlier study again"].append(AGAIN)
    known = {AGAIN}
    for stage, job in _plan(settings, rows, matter):
        if job not in known and not _is_done(job, rows):
            left.setdefault(stage, []).append(job)
        known.add(job)
    return {stage: jobs for stage, jobs in left.items() if jobs}


def _is_done(job: Job, rows: Rows) -> bool:
    """A trial needs validation, a seed of the chosen setting test as well."""
    return job in rows and (rows[job]["loss"] is not None or job not in _seeds_needed(job, rows))


def _seeds_needed(job: Job, rows: Rows) -> set[Job]:
    """`job` itself where it is the chosen setting of its router and so belongs into the table."""
    is_matter = job.router.startswith(MATTER)
    is_chosen = chosen(job.router, rows, job.log, job.weights) == job.setting
    return {job} if is_matter or is_chosen else set()


def _plan(settings: Settings, rows: Rows, matter: Settings) -> Iterator[tuple[str, Job]]:
    unknown = [router for router in settings if len(trials(router, rows)) < 2]
    first, others = contenders(settings, rows), list(settings)
    few = quick(first, rows)
    parts: list[tuple[str, Iterator[Job]]] = [
        ("two trials of new routers", _trials(unknown, settings, 2)),
        ("contenders, three seeds", _seeds(few, rows, FIRST_SEEDS)),
        ("contenders, six trials", _trials(few, settings, TRIALS)),
        ("contenders, five seeds", _seeds(few, rows, SEEDS)),
        ("contenders with many experts, three seeds", _seeds(first, rows, FIRST_SEEDS)),
        ("contenders with many experts, six trials", _trials(first, settings, TRIALS)),
        ("contenders with many experts, five seeds", _seeds(first, rows, SEEDS)),
        ("all others, six trials", _trials(others, settings, TRIALS)),
        ("all others, five seeds", _seeds(others, rows, SEEDS)),
        ("weights .1 and .9", _ported(RATING_ROUTERS, rows, (SMALL, RATING_WEIGHTS), SEEDS)),
        ("does routing matter? up to 10^5.3 rows", _matter(matter, LARGE, larger=False)),
        ("MovieLens-1M, three seeds", _ported(first, rows, (LARGE, WEIGHTS), LARGE_SEEDS)),
        ("does routing matter? 10^6.3 rows", _matter(matter, LARGE, larger=True)),
    ]
    for stage, jobs in parts:
        yield from ((stage, job) for job in jobs)


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


def _matter(matter: Settings, large: str, larger: bool) -> Iterator[Job]:
    """Seed by seed: numbers of experts on MovieLens-100K, then its variants with 16 experts."""
    for seed in range(LARGE_SEEDS):
        for log, facts in LOGS.items():
            if (log == large) != larger:
                continue
            weights = WEIGHTS_OF[len(facts.tasks)]
            for group, labels in matter.items():
                for label in list(labels) if log == SMALL else list(labels)[:1]:
                    yield Job(log, group, label, seed, weights)


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
