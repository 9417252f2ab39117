"""The studies of the paper: what a recipe trains, and the command that runs it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.plan import make_plan
from recsys_moe.lab.tune import plan as tune_plan
from recsys_moe.lab.tune.dimensions import Choices, Range
from recsys_moe.schema import Schema
from research.paper import drawing, study
from research.paper.__main__ import app
from research.paper.curve import curve_of
from research.paper.recipes import find_recipe, read_recipe, recipes
from research.paper.study import as_request, run_tuning, tuning_request
from tests.conftest import Command, tells
from tests.lab.in_process import TINY
from tests.lab.tune.tune_pretend import Pretend


def test_every_recipe_resolves_to_runs_that_could_start(prepared: Path) -> None:
    for name, recipe in recipes().items():
        assert "MovieLens-" not in recipe.reading, name  # which data it has is said when it runs
        if recipe.routers:
            plan = make_plan(as_request(recipe), prepared)
            assert len(plan.contenders) == len(recipe.routers) * len(recipe.weights)
            configs = {json.dumps(c.config) for c in plan.contenders.values()}
            assert len(configs) == len(plan.contenders)


def test_a_recipe_sets_what_the_paper_says() -> None:
    """Fig. 5: 4 experts, learning rate 5e-5; Table 1: 50 runs of nine routers, two weights."""
    request = as_request(find_recipe("fig5_specialisation"))
    assert request.file is not None
    assert request.file["model"]["num_experts"] == 4
    assert request.file["optim"]["lr"] == 5e-5
    table = find_recipe("table1_movielens")
    assert (table.seeds, len(table.routers), table.weights) == (50, 9, ["0.1,0.9", "0.9,0.1"])


def test_what_is_tuned_stands_over_the_recipe() -> None:
    tuned = {"moesart_2": {"optim": {"lr": 1e-5}}}
    request = as_request(find_recipe("fig4_k"), seeds=[7], settings=tuned)
    assert request.settings is not None
    assert request.settings["moesart_2"]["optim"]["lr"] == 1e-5
    assert request.settings["moesart_2"]["model"]["router"] == {"name": "moesart", "k": 2}
    assert request.seeds == [7]


def test_what_is_typed_is_not_searched_and_stands_over_the_recipe() -> None:
    typed = {"optim": {"lr": 1e-3}, "trainer": {"max_epochs": 2}}
    request = tuning_request(find_recipe("figs2_tuning"), "moesart", 7, typed)
    assert request.fixed == ["optim.lr", "trainer.max_epochs"]
    assert (request.config.optim.lr, request.config.trainer.max_epochs) == (1e-3, 2)
    assert (request.trials, request.weights, request.sampler) == (7, "0.1,0.9", "random")


def test_tuning_draws_the_curve_of_every_router(prepared: Path, tmp_path: Path) -> None:
    """The figure's numbers are those of each study's own results."""
    recipe = find_recipe("figs2_tuning")
    found = run_tuning(recipe, prepared, tmp_path, trials=3, typed=TINY, executor=Pretend())
    numbers = json.loads((tmp_path / "figure.json").read_text())["tuning"]
    assert list(numbers) == ["moesart", "topk"]
    for router, points in found.items():
        own = json.loads((tmp_path / router / "trials.json").read_text())
        assert [point["test"] for point in numbers[router]] == [p.test for p in points]
        assert points == curve_of(own)
        assert own["sampler"] == "random" and own["weights"] == {"watch": 0.1, "rating": 0.9}
    lines = drawing.draw_tuning(found).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [
        [point.test for point in points] for points in found.values()
    ]


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


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_the_data_of_a_study_are_named(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(study, "run_paper", lambda *args, **options: None)
    with caplog.at_level(logging.INFO, logger="recsys_moe"):
        found = call("table1_books", "--data", str(prepared), "--out", str(tmp_path))
    assert found.exit_code == 0
    schema = Schema.load(prepared)
    assert f"data: {schema.name} (protocol {schema.protocol}), {schema.rows['train']} rows" in (
        caplog.text
    )
    assert f"the recipe is made for: {recipes()['table1_books'].prepare}" in caplog.text


def test_recipes_are_listed_with_what_they_make() -> None:
    lines = call().stdout.splitlines()
    assert len(lines) == len(recipes())
    assert any(line.startswith("fig4_k ") and "Figure 4" in line for line in lines)


def test_the_command_of_before_says_where_the_studies_are(command: Command) -> None:
    assert "python -m research.paper" in command.fails(2, "paper", "fig4_k", "--out", "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig4"], "'fig4' ... 'fig4_k'"),
        (["fig4_k"], "--out is needed"),
        (["fig4_k", "--trials", "3"], "--trials ... got 3"),
        (["figs2_tuning", "--seeds", "3"], "--seeds ... got 3"),
        (["fig4_k", "--out", "x"], "--data is needed for Figure 4"),
    ],
)
def test_what_is_missing_is_said(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = call(*arguments).exception
    assert isinstance(error, ConfigError) and tells(str(error), message)
    assert not (tmp_path / "x").exists()


def test_a_damaged_recipe_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("makes: Figure 9\nreading: ''\nrouters: [topk]\nfigur: curves\n")
    with pytest.raises(ConfigError, match="mine.yaml: figur"):
        read_recipe(file)
    file.write_text("makes: Figure 9\nreading: ''\nfigure: curves\n")
    with pytest.raises(ConfigError, match="routers must be named"):
        read_recipe(file)
