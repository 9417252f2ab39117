"""The figures of the studies show the numbers of their runs."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.significance import Spread
from research.paper import bias, drawing, figures, inference_gap
from research.paper.curve import Point
from research.paper.recipes import Recipe
from research.paper.study import draw, draw_bias, run_recipe
from tests.lab.in_process import TINY, InProcess

RECIPE = Recipe(
    makes="Figure 2",
    reading="",
    routers=["moesart", "topk", "softmax"],
    weights=["0.9,0.1"],
    seeds=2,
    figure="inference",
)


@pytest.fixture(scope="module")
def study(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A finished study of three routers and two seeds. Read only."""
    out = tmp_path_factory.mktemp("paper") / "out"
    finished = run_recipe(RECIPE, prepared, out, typed=TINY, executor=InProcess())
    assert finished.failures == []
    return finished.results, out


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
    with pytest.raises(ConfigError, match="known .*got hash"):
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


@pytest.mark.slow
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


def test_probabilities_of_all_draws_add_up_to_one() -> None:
    g = bias.distribution("random", 6)
    for replacement in (True, False):
        assert sum(p for _, p in bias.draws(g, 3, replacement)) == pytest.approx(1)


def test_the_bars_are_as_high_as_the_biases() -> None:
    found = bias.study(4, 2)
    bars = [bar.get_height() for bar in drawing.draw_bias(found).axes[0].patches]
    assert sorted(bars) == sorted(b.bias for b in found if b.replacement)


def test_balances_are_drawn_at_their_evenness_and_loss() -> None:
    point = figures.Balance(
        "topk", "watch", Spread(0.5, 0.1, 2), Spread(0, 0, 2), Spread(1, 0, 2), Spread(0.7, 0, 2)
    )
    (axes,) = drawing.draw_balances([point]).axes
    assert axes.containers[0].lines[0].get_xydata().tolist() == [[0.5, 0.7]]


def test_histograms_are_drawn_as_they_are() -> None:
    sparse = figures.Histogram("topk", "sparse", "watch", 0.5, [0, 1, 2], [0.9, 0.1])
    dense = figures.Histogram("topk", "dense", "watch", 0.6, [0, 1, 2], [0.2, 0.8])
    (axes,) = drawing.draw_histograms([sparse, dense]).axes
    drawn = {patch.get_label(): patch.get_data().values.tolist() for patch in axes.patches}
    assert drawn == {"sparse, mean 0.5000": [0.9, 0.1], "dense, mean 0.6000": [0.2, 0.8]}


def test_the_band_of_tuning_is_one_standard_deviation() -> None:
    points = [Point(1, 1, 0, 0.8, 0.1), Point(2, 1, 0, 0.6, 0.05)]
    (axes,) = drawing.draw_tuning({"topk": points}).axes
    assert not any("$" in label.get_text() for label in axes.get_xticklabels(which="both"))
    heights = {round(y, 6) for _, y in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert heights == {0.7, 0.9, 0.55, 0.65}


def test_losses_of_other_task_weights_are_in_another_figure(
    study: tuple[Results, Path], prepared: Path, tmp_path: Path
) -> None:
    results, _ = study
    (group,) = results.groups
    groups = [replace(group, rows=[row]) for row in group.rows[:2]]
    draw("balance", replace(results, groups=groups), prepared, tmp_path)
    for number, own in enumerate(groups, 1):
        drawn = json.loads((tmp_path / f"figure-{number}.json").read_text())["balance"]
        assert {point["contender"] for point in drawn} == {own.rows[0].contender}
    assert not (tmp_path / "figure.json").exists()
