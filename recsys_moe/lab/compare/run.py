"""compare: resumable runs of routers x task weights x seeds, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from recsys_moe.files import write_json, write_text
from recsys_moe.lab.compare import tables as compare_tables
from recsys_moe.lab.compare.plan import ComparisonPlan, make_plan, settle
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.compare.results import Results, collect, lab_run
from recsys_moe.lab.compare.run_files import run_files
from recsys_moe.lab.jobs.executor import Executor, Job
from recsys_moe.lab.jobs.local_runs import Finished, Progress, alone, check_jobs, local_executor
from recsys_moe.lab.jobs.plan_file import check_folder, follows_data
from recsys_moe.schema import Schema

Comparison = Finished[Results]


def compare(
    request: ComparisonRequest,
    data: Path,
    out: Path,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run what is missing at `out`, then write results.json and the tables there.

    `jobs`: processes at a time, by default one per core, or one where they would share a GPU.
    `executor`: where runs run instead of in processes of this machine, without `jobs`.
    Raises ConfigError, DataError, and Interrupted on SIGINT and SIGTERM.
    """
    data, out = Path(data), Path(out)
    if executor is None:
        check_jobs(jobs)
    check_folder(out, "comparison")
    plan = make_plan(replace(request, follows_data=follows_data(out)), data)
    with alone(out) as lock:
        plan = settle(plan, out)
        configs = [contender.config for contender in plan.contenders.values()]
        more = ["--ranking"] if request.ranking else []
        todo = [_job(plan, data, out, more, key=key, seed=seed) for key, seed in plan.runs()]
        executor = executor or local_executor(configs, jobs, len(todo), lock)
        progress = Progress(len(todo), "runs")
        with progress.interruptible(out), closing(executor.run(todo)) as outcomes:
            for outcome in outcomes:
                if outcome.started:
                    _write(plan, data, out, request.ranking)
                progress.add(outcome)
        return Comparison(_write(plan, data, out, request.ranking), "runs", progress.failures)


def _job(
    plan: ComparisonPlan, data: Path, out: Path, ranking: Sequence[str], *, key: str, seed: int
) -> Job:
    """`ranking`: further options of `evaluate`."""
    run, config = lab_run(out, key, seed), out / "configs" / f"{key}.yaml"
    if not config.is_file():
        write_text(config, yaml.safe_dump(plan.contenders[key].config, sort_keys=False))
    more = ["--seed", str(seed)]
    if plan.split != "val":  # which `fit` evaluates in any case
        more += ["--evaluate", plan.split]
    # The second step is for rankings, and for a run that was stopped between the two.
    steps = run.fit_step(data, config, *more), run.evaluate_step(plan.split, data, *ranking)
    return Job(run.name, steps, run.log)


def _write(plan: ComparisonPlan, data: Path, out: Path, ranking: bool) -> Results:
    schema = Schema.load(data)
    results = collect(plan, schema, out, ranking)
    notes = compare_tables.notes_of(results)
    write_json(out / "results.json", {**asdict(results), "notes": notes})
    write_text(out / "table.md", compare_tables.markdown(results))
    write_text(out / "table.tex", compare_tables.latex(results))
    write_text(out / "table.csv", compare_tables.csv_text(results))
    for name, text in run_files(results, plan, out).items():
        write_text(out / name, text)
    return results
