"""Small comparisons that train in this process, and the request that they begin with."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from recsys_moe import cli
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.jobs.executor import Job, Outcome
from tests.conftest import TINY_MODEL

TINY = {"model": TINY_MODEL, "trainer": {"max_epochs": 2, "batch_size": 64}}
ASKED = ComparisonRequest(
    routers=["moesart", "topk"], seeds=[0, 1], weights=["0.9,0.1"], typed=TINY, file={}
)
"""`file`: of a file, which nothing is added to."""


@dataclass
class InProcess:
    """An executor that runs commands in this process: importing torch anew takes seconds."""

    fails: str = "nothing"
    stops_at: str = "nothing"

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        for job in jobs:
            started = 0
            if self.stops_at in job.name:
                raise KeyboardInterrupt
            for step in job.steps:
                if self.fails not in job.name and (command := step()) is not None:
                    cli.app(command[3:], standalone_mode=False)
                    started += 1
            yield Outcome(job, 3 if self.fails in job.name else 0, started)
