"""The search of the paper's Figure S2 is the paper's."""

from __future__ import annotations

from pathlib import Path

from recsys_moe.lab.paper.recipes import find_recipe
from recsys_moe.lab.paper.study import tuning_request
from recsys_moe.lab.tune import plan as tune_plan
from recsys_moe.lab.tune.space import Choices, Range


def test_the_papers_search_has_its_ranges_and_no_trial_of_the_given_settings(
    prepared: Path,
) -> None:
    """S6.3: learning rates from 5e-5 to 5e-4, the given 4e-4 is among them; lambda 0 to 10."""
    request = tuning_request(find_recipe("figs2_tuning"), "moesart", None, {})
    plan = tune_plan.make_plan(request, prepared, "study.db")
    assert plan.space == {
        "optim.lr": Range(5e-5, 5e-4, log=True),
        "penalties.trimmed_lasso": Choices((0.0, 0.01, 0.1, 1.0, 10.0)),
    }
    assert plan.outside == [] and plan.given is None
    assert (request.trials, plan.sampler, plan.pruner) == (500, "random", "none")
