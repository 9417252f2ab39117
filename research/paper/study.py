"""Run a recipe: what is missing of its runs, then its table, its figure and the numbers behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from recsys_moe.config.diff import flat
from recsys_moe.config.files import merge, nested
from recsys_moe.config.settings import parse_config, select_router
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.run import Comparison, compare
from recsys_moe.lab.jobs.executor import Executor
from recsys_moe.lab.jobs.local_runs import Finished
from recsys_moe.lab.jobs.plan_file import Raw
from recsys_moe.lab.report import comparison, plots_comparison
from recsys_moe.lab.report.run import Options, look_at
from recsys_moe.lab.tune.plan import StudyRequest
from recsys_moe.lab.tune.run import tune
from recsys_moe.lab.tune.space import PAPER_LR
from recsys_moe.progress import row_progress
from research.paper import bias, drawing, expert_map, figures
from research.paper.curve import Point, curve_of
from research.paper.recipes import Recipe

BIAS_SIZES = ((8, 2), (8, 4))
"""Experts and k of Fig. S1, which does not state them."""
MAP_ROWS = 20_000
"""Rows of the split that are routed for Fig. 5; some of them are drawn."""


def run_paper(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    seeds: range,
    trials: int | None,
    typed: Raw,
    settings: Raw | None,
    jobs: int | None,
) -> Comparison | None:
    """Train what is missing, write tables and figures; None for a study without a comparison.

    What is given stands over the recipe. Raises ConfigError, and what `compare` and `tune` raise.
    """
    if recipe.figure == "bias":
        draw_bias(out)
    elif recipe.figure == "tuning":
        typed = merge(typed, nested("trainer.seed", seeds.start))
        run_tuning(recipe, data, out, trials=trials, typed=typed, jobs=jobs)
    else:
        return run_recipe(recipe, data, out, seeds=seeds, typed=typed, settings=settings, jobs=jobs)
    return None


def run_recipe(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    seeds: Sequence[int] | None = None,
    typed: Raw | None = None,
    settings: dict[str, Raw] | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Train what is missing at `out` and write table and figure there.

    `seeds`, `typed` and `settings` (e.g. tuned) stand over those of the recipe.
    Raises ConfigError, DataError and Interrupted, as `compare` does.
    """
    request = as_request(recipe, seeds, typed, settings)
    finished = compare(request, data, out, jobs=jobs, executor=executor)
    if recipe.figure and finished.results.runs:
        draw(recipe.figure, finished.results, data, out)
    return finished


def as_request(
    recipe: Recipe,
    seeds: Sequence[int] | None = None,
    typed: Raw | None = None,
    settings: dict[str, Raw] | None = None,
) -> ComparisonRequest:
    """What `compare` is asked."""
    return ComparisonRequest(
        routers=recipe.routers,
        seeds=list(range(recipe.seeds) if seeds is None else seeds),
        weights=recipe.weights,
        file=recipe.file(),
        settings=merge(recipe.settings, settings or {}),
        typed=typed,
    )


def run_tuning(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    trials: int | None = None,
    typed: Raw | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> dict[str, list[Point]]:
    """A folder of `tune` per router at OUT/<router>, then OUT/figure.*: the curves by router.

    `trials` and `typed` stand over the recipe. Raises what `tune` raises, and RunError for failed
    trials once every router has had its turn.
    """
    curves, failures = {}, []
    for router in recipe.routers:
        request = tuning_request(recipe, router, trials, typed or {})
        tuning = tune(request, data, out / router, jobs=jobs, executor=executor)
        curves[router] = curve_of(tuning.results)
        failures += tuning.failures
    numbers = {router: [point._asdict() for point in points] for router, points in curves.items()}
    drawing.save(out, "figure", drawing.draw_tuning, curves, numbers={"tuning": numbers})
    Finished(curves, "trials", failures).check()
    return curves


def tuning_request(recipe: Recipe, router: str, trials: int | None, typed: Raw) -> StudyRequest:
    """What `tune` is asked: random search over the paper's ranges."""
    raw, _ = select_router(recipe.file(), router)
    fixed = [key for key, _ in flat(typed)]
    return StudyRequest(
        config=parse_config(merge(raw, typed)),
        trials=trials or recipe.trials or 1,
        weights=recipe.weights[0] if recipe.weights else None,
        fixed=fixed,
        space=None if "optim.lr" in fixed else {"optim.lr": PAPER_LR.to_json()},
        try_given=False,
        sampler="random",
        evaluate_test=True,
    )


def draw(kind: str, results: Results, data: Path, out: Path) -> None:
    """OUT/figure.json, .svg and .png from the runs that are finished.

    Losses of other task weights cannot be compared: with several of them figure-1, figure-2, ...
    """
    for number, group in enumerate(results.groups, 1):
        own = {row.contender for row in group.rows}
        runs = [run for run in results.runs if run.contender in own]
        name = "figure" if len(results.groups) == 1 else f"figure-{number}"
        if runs:
            _FIGURES[kind](replace(results, groups=[group], runs=runs), data, out, name)


def draw_bias(out: Path) -> None:
    """OUT/figure-n8-k2.json and so on: exact, so there is nothing to train or to draw at random."""
    for experts, k in BIAS_SIZES:
        biases = bias.study(experts, k)
        numbers = {"bias": [asdict(entry) for entry in biases]}
        drawing.save(out, f"figure-n{experts}-k{k}", drawing.draw_bias, biases, numbers=numbers)


def _curves(results: Results, data: Path, out: Path, name: str) -> None:
    """Validation losses: a panel per router; the band is from the least to the largest seed."""
    curves = comparison.curves(out, results, results.groups[0])
    drawing.save(out, name, plots_comparison.learning, curves, numbers=asdict(curves))


def _balance(results: Results, data: Path, out: Path, name: str) -> None:
    balances = figures.balances(results)
    numbers = {"balance": [asdict(entry) for entry in balances]}
    drawing.save(out, name, drawing.draw_balances, balances, numbers=numbers)


def _inference(results: Results, data: Path, out: Path, name: str) -> None:
    histograms, distances = figures.inference_figure(results, out, data)
    numbers = {"wasserstein": distances, "histograms": [asdict(entry) for entry in histograms]}
    drawing.save(out, name, drawing.draw_histograms, histograms, numbers=numbers)


def _maps(results: Results, data: Path, out: Path, name: str) -> None:
    """A figure per run; `report` of the run has the rest."""
    options = Options(data=data, split=results.split, rows=MAP_ROWS)
    for record in results.runs:
        found = expert_map.map_of(look_at(out / record.run, options, row_progress))
        own = f"{name}-{record.contender}-seed{record.seed}"
        drawing.save(out, own, expert_map.draw_map, found, numbers=asdict(found))


_FIGURES: dict[str, Callable[[Results, Path, Path, str], None]] = {
    "curves": _curves,
    "balance": _balance,
    "inference": _inference,
    "maps": _maps,
}
