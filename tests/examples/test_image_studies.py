"""`python -m examples.images.compare`: the paper's studies on small made files."""

from __future__ import annotations

import csv
import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.common.outputs import spread
from examples.common.runs import finished, stop
from examples.images import compare, inference
from examples.images.data import multi_mnist
from examples.images.module import ImageModule
from examples.images.recipes import RECIPES
from examples.images.settings import settings_for
from examples.images.table import table
from recsys_moe.errors import ConfigError, RunError
from tests.conftest import tells
from tests.examples.made_files import mnist_folder, svhn_folder

QUICK = ("--epochs", "1", "--batch-size", "64")


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mnist_folder(tmp_path_factory.mktemp("mnist"), 60, 12)


def study(*words: object) -> int:
    return compare.main([*map(str, words), *QUICK])


def test_without_words_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(RECIPES)


def test_a_study_leaves_a_row_per_run_and_a_table_with_the_papers_values(
    mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("table1", "--data", mnist, "--out", tmp_path, "--routers", "topk,pps")
    assert study(*words, "--seeds", 2) == 0
    done = capsys.readouterr()
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [(row["label"], row["seed"]) for row in rows] == [
        *(("pps", "0"), ("pps", "1"), ("topk", "0"), ("topk", "1"))
    ]
    assert done.out == (tmp_path / "table.md").read_text()
    head, _, topk, pps = done.out.splitlines()
    assert head.startswith("| contender | k | runs | test loss x 100 | paper | accuracy 1, % | pa")
    assert topk.startswith("| topk | 4 | 2 | ") and "| 7.15 +- 0.05 |" in topk
    assert pps.startswith("| pps | 4 | 2 | ")
    curves = json.loads((tmp_path / "figure.json").read_text())["validation_loss"]
    assert [len(curves[label]) for label in ("topk", "pps")] == [2, 2]
    assert (tmp_path / "figure.png").exists() and (tmp_path / "figure.svg").exists()


def test_a_stopped_study_repeats_no_finished_run(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    whole = ImageModule.on_fit_start

    def stops(module: ImageModule) -> None:
        trained.append(module.settings.router)
        if len(trained) == 2:
            stop(signal.SIGTERM, None)
        whole(module)

    monkeypatch.setattr(ImageModule, "on_fit_start", stops)
    words = ("table1", "--data", mnist, "--out", tmp_path, "--routers", "topk,vmoe", "--seeds", 1)
    assert study(*words) == 143
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 2  # heading and topk
    assert study(*words) == 0
    assert trained == ["topk", "vmoe", "vmoe"]


def test_a_run_that_fails_does_not_stop_the_others_and_is_named(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = compare.train

    def breaks(settings: Any, *args: Any) -> Any:
        if settings.router == "topk":
            raise RunError("the loss is not finite")
        return whole(settings, *args)

    monkeypatch.setattr(compare, "train", breaks)
    words = ("table1", "--data", mnist, "--out", tmp_path, "--routers", "topk,vmoe", "--seeds", 1)
    assert study(*words) == 1
    assert tells(capsys.readouterr().err, "error: 1 of 2 ... not finite")
    assert "vmoe" in (tmp_path / "results.csv").read_text()


def test_figure_2_shows_both_inferences_and_their_distances(tmp_path: Path) -> None:
    data = svhn_folder(tmp_path / "svhn")
    assert study("fig2_inference", "--data", data, "--out", tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "figure.json").read_text())
    pairs = [(one["one"], one["other"]) for one in found["wasserstein"]]
    assert pairs == [
        ("softmax sparse", "softmax dense"),
        ("moesart sparse", "moesart dense"),
        ("topk sparse", "topk dense"),
        ("moesart sparse", "softmax dense"),
        ("topk sparse", "softmax dense"),
    ]
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    shown = {"softmax": "dense", "moesart": "sparse", "topk": "sparse"}  # how training evaluates
    for row in rows:
        mean = found[f"{row['label']} {shown[row['label']]}"]["mean"]
        assert mean == pytest.approx(float(row["test_loss"]), rel=1e-5)


@pytest.mark.parametrize(
    ("router", "way", "chosen"),
    [(r, w, 3 if w == "sparse" else 8) for r, ways in inference.WAYS.items() for w in ways],
)
def test_sparse_inference_weighs_k_experts_and_dense_all_of_them(
    mnist: Path, router: str, way: str, chosen: int
) -> None:
    rows, settings = multi_mnist(mnist).test, settings_for("multi_mnist", router, k=3)
    model = ImageModule(settings, rows.shape).model
    switched = inference.switched(model, settings, rows.shape, inference.WAYS[router][way])
    for routing in switched(rows.take(torch.arange(4))[0])[1]:
        assert (routing.weights_BE > 0).sum(1).tolist() == [chosen] * 4


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_plans_its_runs(name: str) -> None:
    recipe = RECIPES[name]
    options = compare.parser().parse_args([name, "--data", "x", "--out", "y"])
    options.dataset = recipe.dataset
    runs = compare.planned(recipe, list(recipe.contenders), options)
    assert len({folder for folder, _ in runs}) == len(runs) == recipe.seeds * len(recipe.contenders)
    assert all(s.router_settings.get("temperature", 1.0) == 1.0 for _, s in runs)  # the paper's
    if name == "fig4_k":
        assert [s.k for _, s in runs[:6]] == [2, 4, 6] * 2
    if name == "fig3_replacement":
        assert [s.router_settings["replacement"] for _, s in runs[:2]] == [False, True]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tabel1"], 2, "'tabel1' ... 'table1'"),
        (["table1", "--routers", "topk,nope"], 2, "must be one of moesart"),
        (["fig2_inference", "--routers", "vmoe"], 2, "sparse and dense inference need one of"),
        (["fig4_k", "--k", "2"], 2, "k ... got 2"),
        (["s1_strategies", "--set", "strategy=i"], 2, "strategy"),
        (["table1", "--seeds", "0"], 2, "--seeds ... got 0"),
        (["fig4_k", "--dataset", "svhn"], 3, "has no train_32x32.mat"),
    ],
)
def test_a_study_that_cannot_be_is_refused_before_it_trains(
    mnist: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    out = tmp_path / "out"
    assert compare.main([*words, "--data", str(mnist), "--out", str(out)]) == code
    assert tells(capsys.readouterr().err, said)
    assert not out.exists()


def test_a_table_gives_means_and_standard_errors() -> None:
    """Of 1, 2 and 3: mean 2, standard deviation 1, over sqrt 3: 0.577."""
    assert spread([1.0, 2.0, 3.0]) == "2.00 +- 0.58"
    assert spread([1.5]) == "1.50"
    row = {"label": "topk", "dataset": "multi_mnist", "tasks": 2, "k": 3, "experts": 8}
    row |= {"test_loss": 0.07, "test_accuracy_1": 0.98, "test_accuracy_2": 0.97}
    row |= {"test_experts": 4.5, "best_epoch": 3, "seconds_per_epoch": 2.0}
    line = table([row]).splitlines()[2]  # the paper's k is 4, so its cells are empty
    assert line == "| topk | 3 | 1 | 7.00 |  | 98.00 |  | 97.00 |  | 4.50 | 3 | 2.0 |"


def test_a_run_from_before_there_was_a_setting_goes_on_with_its_default(tmp_path: Path) -> None:
    settings = settings_for("multi_mnist", "topk")
    older = dataclasses.asdict(settings)
    del older["precision"]
    (tmp_path / "settings.json").write_text(json.dumps(older))
    (tmp_path / "result.json").write_text("{}")
    assert finished(settings, tmp_path) == {}
    with pytest.raises(ConfigError, match="holds .*got bf16-mixed"):
        finished(dataclasses.replace(settings, precision="bf16-mixed"), tmp_path)
