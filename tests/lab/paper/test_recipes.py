"""The studies of the paper: what a recipe trains, and that its figures show the runs' numbers."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from recsys_moe import cli
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.plan import make_plan
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.paper import bias, drawing, figures, inference_gap
from recsys_moe.lab.paper.recipes import Recipe, find_recipe, folder, read_recipe
from recsys_moe.lab.paper.study import (
    as_request,
    draw,
    draw_bias,
    run_recipe,
    run_tuning,
    tuning_request,
)
from tests.conftest import tells
from tests.lab.in_process import TINY, InProcess
from tests.lab.tune.tune_pretend import Pretend

RECIPE = Recipe(
    makes="Figure 2",
    reading="",
    routers=["moesart", "topk", "softmax"],
    weights=["0.9,0.1"],
    seeds=2,
    figure="inference",
)


@pytest.fixture(scope="module")
def study(
    prepared: Path, comparison: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Results, Path]:
    """A finished study of three routers, two seeds, of which two were there. Read only."""
    out = tmp_path_factory.mktemp("paper") / "out"
    shutil.copytree(comparison, out)
    finished = run_recipe(RECIPE, prepared, out, typed=TINY, executor=InProcess())
    assert finished.failures == []
    return finished.results, out


NAMES = sorted(file.stem for file in folder().glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_resolves_to_runs_that_could_start(name: str, prepared: Path) -> None:
    recipe = find_recipe(name)
    if not recipe.routers:
        return
    plan = make_plan(as_request(recipe), prepared)
    assert len(plan.contenders) == len(recipe.routers) * len(recipe.weights)
    assert len({json.dumps(c.config) for c in plan.contenders.values()}) == len(plan.contenders)


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


def test_curves_are_those_of_the_comparison(study: tuple[Results, Path], prepared: Path) -> None:
    results, out = study
    draw("curves", results, prepared, out)
    numbers = json.loads((out / "figure.json").read_text())
    assert [curve["router"] for curve in numbers["routers"]] == ["moesart", "topk", "softmax"]
    curve = numbers["routers"][0]
    losses = []
    for seed in (0, 1):
        metrics = out / "runs" / f"moesart-0.9_0.1-seed{seed}" / "metrics.csv"
        with metrics.open(newline="") as stream:
            losses.append([float(row["val/loss"]) for row in csv.DictReader(stream)])
    assert curve["epochs"] == [1, 2]
    assert curve["mean"] == pytest.approx([(a + b) / 2 for a, b in zip(*losses, strict=True)])


def test_maps_colour_each_row_by_its_top_expert(
    study: tuple[Results, Path], prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # not installed: PCA
    results, out = study
    draw("maps", replace(results, runs=results.runs[:1]), prepared, out)
    (file,) = out.glob("figure-moesart*.json")
    numbers = json.loads(file.read_text())
    assert numbers["projection"] == "PCA"
    artifact = load_artifact(out / results.runs[0].run)
    assert set(numbers["top"]["watch"]) <= set(range(artifact.config.model.num_experts))
    assert len(numbers["x"]) == len(numbers["top"]["rating"])


def test_evenness_is_one_for_equal_loads_and_nought_for_one_expert() -> None:
    assert figures.evenness([3, 3, 3, 3]) == pytest.approx(1)
    assert figures.evenness([1, 0, 0, 0]) == 0
    # half and half of four: log 2 / log 4 = 1/2
    assert figures.evenness([5, 5, 0, 0]) == pytest.approx(0.5)


def test_balance_is_that_of_the_evaluated_split(study: tuple[Results, Path]) -> None:
    results, out = study
    found = next(
        b for b in figures.balances(results) if b.contender.startswith("topk") and b.task == "watch"
    )
    runs = [out / "runs" / f"{found.contender}-seed{seed}" for seed in (0, 1)]
    loads = [
        json.loads((run / "evaluation/test.json").read_text())["routing"]["watch"]["load"]
        for run in runs
    ]
    shares = [np.array(load) / sum(load) for load in loads]
    assert found.least.mean == pytest.approx(np.mean([share.min() for share in shares]))
    entropies = [-(s[s > 0] * np.log(s[s > 0])).sum() / math.log(4) for s in shares]
    assert found.evenness.mean == pytest.approx(np.mean(entropies))


def test_dense_inference_of_topk_is_the_softmax_over_its_logits(
    study: tuple[Results, Path],
) -> None:
    _, out = study
    artifact = load_artifact(next((out / "runs").glob("topk*seed0")))
    model, config = artifact.model.eval(), artifact.config.model.router
    x = torch.randn(5, 16)
    logits = model.routers[0](x).logits_BE
    assert logits is not None
    inference_gap.switch_routers(model, inference_gap.switched(config, "dense", 2))
    torch.testing.assert_close(model.routers[0](x).weights_BE, logits.softmax(-1))
    inference_gap.switch_routers(model, inference_gap.switched(config, "sparse", 2))
    assert model.routers[0](x).selected_BE.sum(-1).tolist() == [2] * 5


def test_sparse_inference_of_softmax_keeps_k_renormalised(study: tuple[Results, Path]) -> None:
    _, out = study
    artifact = load_artifact(next((out / "runs").glob("softmax*seed0")))
    config = artifact.config.model.router
    inference_gap.switch_routers(artifact.model, inference_gap.switched(config, "sparse", 3))
    routing = artifact.model.eval().routers[0](torch.randn(5, 16))
    assert routing.selected_BE.sum(-1).tolist() == [3] * 5
    torch.testing.assert_close(routing.weights_BE.sum(-1), torch.ones(5))


def test_losses_of_the_own_inference_have_the_mean_that_evaluation_reports(
    study: tuple[Results, Path], prepared: Path
) -> None:
    results, out = study
    for record in (r for r in results.runs if r.seed == 0):
        gap = inference_gap.inference_gap(out / record.run, prepared, "test")
        own = "dense" if gap.router == "softmax" else "sparse"
        tasks = record.details["tasks"]
        assert gap.mean("watch", own) == pytest.approx(tasks["watch"]["bce"], rel=1e-5)
        assert gap.mean("rating", own) == pytest.approx(tasks["rating"]["mse"], rel=1e-5)


def test_a_router_without_two_ways_of_inference_is_refused(
    run: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = load_artifact(run)
    router = artifact.config.model.router.model_copy(update={"name": "hash"})
    model = artifact.config.model.model_copy(update={"router": router})
    hashed = replace(artifact, config=artifact.config.model_copy(update={"model": model}))
    monkeypatch.setattr(inference_gap, "load_artifact", lambda path: hashed)
    with pytest.raises(ConfigError, match="known .*got router hash"):
        inference_gap.inference_gap(run, prepared, "test")


def gap(router: str, sparse: list[float], dense: list[float]) -> inference_gap.Gap:
    ways = {"sparse": np.array(sparse), "dense": np.array(dense)}
    return inference_gap.Gap(router, router, {"watch": ways})


def test_wasserstein_distances_golden() -> None:
    """Sorted values pair up: |1-2| and |3-3| -> 1/2; |1-0| and |3-1| -> 3/2."""
    found = inference_gap.distances(
        [gap("moesart", [3, 1], [2, 3]), gap("softmax", [5, 5], [0, 1])]
    )
    values = {(d.one, d.other): d.distance for d in found}
    assert values["moesart, sparse inference", "moesart, dense inference"] == pytest.approx(0.5)
    assert values["moesart, sparse inference", "softmax, dense inference"] == pytest.approx(1.5)
    assert len(found) == 3


def test_histograms_hold_every_row_once() -> None:
    """Losses above the last bin stand in it, so the shares add up to 1."""
    found = figures.histograms([gap("topk", [0.0, 1.0, 100.0], [0.5, 0.5, 0.5])], bins=4)
    assert [sum(h.shares) for h in found] == pytest.approx([1, 1])
    assert found[0].mean == pytest.approx(101 / 3)
    assert found[0].edges == found[1].edges


def test_sparse_inference_keeps_as_many_experts_for_every_router(
    study: tuple[Results, Path], prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed's runs, and the k of the sparse ones for the dense one too."""
    results, out = study
    asked = []

    def pretend(run: Path, data: Path, split: str, k: int) -> inference_gap.Gap:
        asked.append((run.name, split, k))
        return gap("topk", [0.0], [1.0])

    monkeypatch.setattr(figures, "inference_gap", pretend)
    monkeypatch.setattr(figures, "selected_by", lambda run: 3 if "topk" in run.name else 0)
    figures.inference_figure(results, out, prepared)
    routers = ("moesart", "topk", "softmax")
    assert asked == [(f"{name}-0.9_0.1-seed0", "test", 3) for name in routers]


def test_the_bars_are_as_high_as_the_biases() -> None:
    found = bias.study(4, 2)
    bars = [bar.get_height() for bar in drawing.draw_bias(found).axes[0].patches]
    assert sorted(bars) == sorted(b.bias for b in found if b.replacement)


def test_the_figure_has_its_numbers_beside_it(study: tuple[Results, Path], prepared: Path) -> None:
    results, out = study
    draw("inference", results, prepared, out)
    numbers: dict[str, Any] = json.loads((out / "figure.json").read_text())
    assert {h["router"] for h in numbers["histograms"]} == {"softmax", "moesart", "topk"}
    pictures = {name: (out / name).read_bytes() for name in ("figure.svg", "figure.png")}
    draw("inference", results, prepared, out)
    assert {name: (out / name).read_bytes() for name in pictures} == pictures


def test_the_bias_study_says_what_the_paper_shows(tmp_path: Path) -> None:
    draw_bias(tmp_path)
    rows = json.loads((tmp_path / "figure-n8-k2.json").read_text())["bias"]
    found = {(r["shape"], r["replacement"], r["strategy"]): r["bias"] for r in rows}
    for shape in ("linear", "1/i", "2^-i", "3^-i", "0.9 on one"):
        assert found[shape, True, "iii"] == pytest.approx(0, abs=1e-12)
        assert found[shape, True, "3"] < found[shape, True, "i"]
        assert found[shape, False, "i"] == pytest.approx(found[shape, False, "ii"])


@pytest.mark.parametrize(
    ("shape", "with_", "without"),
    [  # of (i), (iii), (3); n = 8, k = 4
        ("2^-i", [0.1721, 0, 0.0837], [0.0671, 0.2876, 0.2238]),
        ("0.9 on one", [0.1003, 0, 0.0698], [0.0583, 0.6949, 0.5721]),
    ],
)
def test_eq_3_is_worse_than_i_for_a_confident_router_without_replacement(
    shape: str, with_: list[float], without: list[float]
) -> None:
    found = {(b.shape, b.replacement, b.strategy): b.bias for b in bias.study(8, 4)}
    for replacement, expected in ((True, with_), (False, without)):
        biases = [found[shape, replacement, strategy] for strategy in ("i", "iii", "3")]
        assert biases == pytest.approx(expected, abs=6e-5)
    assert found[shape, False, "3"] > found[shape, False, "i"]


def test_probabilities_of_all_draws_add_up_to_one() -> None:
    g = bias.distribution("random", 6)
    for replacement in (True, False):
        assert sum(p for _, p in bias.draws(g, 3, replacement)) == pytest.approx(1)


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
        assert own["curve"] == numbers[router]
        assert own["sampler"] == "random" and own["weights"] == {"watch": 0.1, "rating": 0.9}
    lines = drawing.draw_tuning(found).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [
        [point.test for point in points] for points in found.values()
    ]


def call(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["paper", *arguments])


def test_recipes_are_listed_with_what_they_make() -> None:
    lines = call().stdout.splitlines()
    assert len(lines) == len(NAMES)
    assert any(line.startswith("fig4_k ") and "Figure 4" in line for line in lines)


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
