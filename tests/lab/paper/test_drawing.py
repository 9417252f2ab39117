"""Pictures of the studies: what is drawn is what was counted."""

from __future__ import annotations

import json
from pathlib import Path

from recsys_moe.lab.compare.results import Group, Results, Row, RunRecord
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.paper import drawing, figures
from recsys_moe.lab.paper.study import draw
from recsys_moe.lab.tune.curve import Point


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


def test_losses_of_other_task_weights_are_in_another_figure(tmp_path: Path) -> None:
    contenders = {"topk-0.9_0.1": ({"watch": 0.9, "rating": 0.1}, 0.4)}
    contenders |= {"topk-0.1_0.9": ({"watch": 0.1, "rating": 0.9}, 0.7)}
    routing = {"routing": {task: {"load": [0.5, 0.5]} for task in ("watch", "rating")}}
    groups, runs = [], []
    for key, (weights, loss) in contenders.items():
        groups.append(Group(weights, [Row(key, "topk", "2", True, 1, {}, (), {})], []))
        runs.append(RunRecord(key, 0, key, "", 1, 1, {"loss": loss}, routing))
    results = Results("mine", "time", "test", (0,), [], groups, runs, [])
    draw("balance", results, tmp_path, tmp_path)
    for number, (key, (_, loss)) in enumerate(contenders.items(), 1):
        drawn = json.loads((tmp_path / f"figure-{number}.json").read_text())["balance"]
        assert {(point["contender"], point["loss"]["mean"]) for point in drawn} == {(key, loss)}
    assert not (tmp_path / "figure.json").exists()
