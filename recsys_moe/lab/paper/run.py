"""Which kind of study a recipe is, and what runs for it."""

from __future__ import annotations

from recsys_moe.config.files import merge, nested
from recsys_moe.lab.compare.run import Comparison
from recsys_moe.lab.paper import study, tuning
from recsys_moe.lab.paper.request import PaperRequest


def run_paper(request: PaperRequest) -> Comparison | None:
    """Train what is missing, write tables and figures; None for a study without a comparison.

    Raises ConfigError, and whatever `compare` and `tune` raise.
    """
    out, typed, recipe = request.check(), request.typed(), request.recipe
    if request.data is None or not recipe.routers:
        study.draw_bias(out)
        return None
    if recipe.figure == "tuning":
        seeded = merge(typed, nested("trainer.seed", request.seed))
        trials, jobs = request.trials, request.jobs
        tuning.run_tuning(recipe, request.data, out, trials=trials, typed=seeded, jobs=jobs)
        return None
    return study.run_recipe(
        recipe,
        request.data,
        out,
        seeds=request.seed_range(),
        typed=typed,
        settings=request.tuned(),
        jobs=request.jobs,
    )
