"""Test loss against tuning trials, a study per router (Fig. S2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys_moe.config.diff import flat
from recsys_moe.config.settings import merge, parse_config, read_config_file, select_router
from recsys_moe.lab.jobs.local_runs import Finished
from recsys_moe.lab.paper import drawing
from recsys_moe.lab.paper.recipes import Recipe
from recsys_moe.lab.tune.curve import Point
from recsys_moe.lab.tune.plan import StudyRequest
from recsys_moe.lab.tune.results import curve_of
from recsys_moe.lab.tune.run import tune

if TYPE_CHECKING:
    from recsys_moe.lab.jobs.executor import Executor


def run_tuning(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    trials: int | None = None,
    typed: dict[str, Any] | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> dict[str, list[Point]]:
    """A folder of `tune` per router at OUT/<router>, then OUT/figure.*: the curves by router.

    `trials` and `typed` stand over the recipe. Raises what `tune` raises, and RunError for failed
    trials once every router has had its turn.
    """
    curves, failures = {}, []
    for router in recipe.routers:
        request = as_request(recipe, router, trials, typed or {})
        tuning = tune(request, data, out / router, jobs=jobs, executor=executor)
        curves[router] = curve_of(tuning.results)
        failures += tuning.failures
    numbers = {router: [point._asdict() for point in points] for router, points in curves.items()}
    drawing.save(out, "figure", drawing.draw_tuning, curves, numbers={"tuning": numbers})
    Finished(curves, "trials", failures).check()
    return curves


def as_request(
    recipe: Recipe, router: str, trials: int | None, typed: dict[str, Any]
) -> StudyRequest:
    """What `tune` is asked: random search over the paper's ranges."""
    file = read_config_file(recipe.config) if recipe.config else {}
    raw, _ = select_router(merge(file, recipe.common), router)
    return StudyRequest(
        config=parse_config(merge(raw, typed)),
        trials=trials or recipe.trials or 1,
        weights=recipe.weights[0] if recipe.weights else None,
        fixed=[key for key, _ in flat(typed)],
        sampler="random",
        evaluate_test=True,
    )
