"""Run a recipe: what is missing of its runs, then its table, its figure and the numbers behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from recsys_moe.config.settings import merge, read_config_file
from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.plan import ComparisonRequest
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.run import Comparison, compare
from recsys_moe.lab.jobs.plan_file import Raw
from recsys_moe.lab.paper import bias, drawing, figures
from recsys_moe.lab.paper.recipes import Recipe
from recsys_moe.lab.report import comparison, plots_comparison, plots_run
from recsys_moe.lab.report.run import Options, look_at
from recsys_moe.lab.report.specialisation import ExpertMap, load_umap
from recsys_moe.progress import row_progress

if TYPE_CHECKING:
    from recsys_moe.lab.jobs.executor import Executor

BIAS_SIZES = ((8, 2), (8, 4))
"""Experts and k of Fig. S1, which does not state them."""
MAP_ROWS = 20_000
"""Rows of the split that are routed for Fig. 5; some of them are drawn."""


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
    if recipe.figure in _FIGURES and finished.results.runs:
        draw(recipe.figure, finished.results, data, out)
    return finished


def as_request(
    recipe: Recipe,
    seeds: Sequence[int] | None = None,
    typed: Raw | None = None,
    settings: dict[str, Raw] | None = None,
) -> ComparisonRequest:
    """What `compare` is asked."""
    file = read_config_file(recipe.config) if recipe.config else {}
    return ComparisonRequest(
        routers=recipe.routers,
        seeds=list(range(recipe.seeds) if seeds is None else seeds),
        weights=recipe.weights,
        file=merge(file, recipe.common),
        settings=merge(recipe.settings, settings or {}),
        typed=typed,
    )


def draw(kind: str, results: Results, data: Path, out: Path) -> None:
    """OUT/figure.json, .svg and .png from the runs that are finished."""
    _FIGURES[kind](results, data, out)


def draw_bias(out: Path) -> None:
    """OUT/figure-n8-k2.json and so on: exact, so there is nothing to train or to draw at random."""
    for experts, k in BIAS_SIZES:
        biases = bias.study(experts, k)
        numbers = {"bias": [asdict(entry) for entry in biases]}
        drawing.save(out, f"figure-n{experts}-k{k}", drawing.draw_bias, biases, numbers=numbers)


def _curves(results: Results, data: Path, out: Path) -> None:
    """Validation losses: a panel per router; the band is from the least to the largest seed."""
    for number, group in enumerate(results.groups):
        curves = comparison.curves(out, results, group)
        name = "figure" if len(results.groups) == 1 else f"figure-{number + 1}"
        drawing.save(out, name, plots_comparison.learning, curves, numbers=asdict(curves))


def _balance(results: Results, data: Path, out: Path) -> None:
    balances = figures.balances(results)
    numbers = {"balance": [asdict(entry) for entry in balances]}
    drawing.save(out, "figure", drawing.draw_balances, balances, numbers=numbers)


def _inference(results: Results, data: Path, out: Path) -> None:
    histograms, distances = figures.inference_figure(results, out, data)
    numbers = {"wasserstein": distances, "histograms": [asdict(entry) for entry in histograms]}
    drawing.save(out, "figure", drawing.draw_histograms, histograms, numbers=numbers)


def _maps(results: Results, data: Path, out: Path) -> None:
    """A figure per run, with UMAP where it is installed; `report` of the run has the rest."""
    for record in results.runs:
        expert_map = specialisation_of(out / record.run, data, results.split)
        name = f"figure-{record.contender}-seed{record.seed}"
        drawing.save(out, name, plots_run.expert_map, expert_map, numbers=asdict(expert_map))


def specialisation_of(run: Path, data: Path, split: str) -> ExpertMap:
    """The map of a run's experts over rows of a split."""
    projection = "pca"
    with contextlib.suppress(ConfigError):
        load_umap()
        projection = "umap"
    options = Options(data=data, split=split, rows=MAP_ROWS, map=projection)
    return look_at(run, options, row_progress).map()


_FIGURES: dict[str, Callable[[Results, Path, Path], None]] = {
    "curves": _curves,
    "balance": _balance,
    "inference": _inference,
    "maps": _maps,
}
