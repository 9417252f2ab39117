"""The figures and sentences of a comparison are those of its results.json and run folders."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.errors import DataError
from recsys_moe.lab.report import comparison
from recsys_moe.lab.report.comparison import (
    comparison_findings,
    costs,
    curves,
    read_results,
)
from tests.lab.report.conftest import LOSSES, example_results, report
from tests.looks import excess, window


def test_curves_are_means_and_ends_of_the_runs(compared: Path) -> None:
    results = read_results(compared)
    found = {one.router: one for one in curves(compared, results, results.groups[0]).routers}
    assert list(found) == list(LOSSES)
    topk = found["topk"]
    assert (topk.epochs, topk.runs) == ([1, 2], [2, 2])
    assert topk.mean == pytest.approx([1.0, 0.41])
    assert (topk.low, topk.high) == ([1.0, 0.40], [1.0, 0.42])
    assert found["softmax"].runs == [1, 1]


def test_a_run_that_stopped_early_counts_where_it_was(compared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared, tmp_path / "cmp"))
    (folder / "runs/0-seed1/metrics.csv").write_text("epoch,train/loss,val/loss\n1,1,3.0\n")
    results = read_results(folder)
    topk = curves(folder, results, results.groups[0]).routers[0]
    assert topk.mean == pytest.approx([2.0, 0.40])
    assert topk.runs == [2, 1]


def test_the_unbeaten_are_those_that_nothing_cheaper_beats() -> None:
    found = costs(example_results().groups[0])
    assert found.router == ["topk", "softmax", "moe<b>sart</b>"]
    assert found.cost == [2, 4, 3]
    assert found.loss == pytest.approx([0.41, 0.39, 0.31])
    # deviation of 0.40 and 0.42 over the root of 2: 0.01 sqrt(2) / sqrt(2)
    assert found.error[0] == pytest.approx(0.01)
    assert math.isnan(found.error[1])
    assert found.best == [0, 2]  # softmax costs more than moesart and is worse


def test_findings_name_the_best_the_missing_and_the_idle() -> None:
    texts = [finding.text for finding in comparison_findings(example_results())]
    assert texts == [
        "1 of 6 runs are not finished and not counted.",
        "Routers with idle experts (weights watch 1): topk (1 of 2 runs).",
        "loss (weights watch 1): of the k-sparse routers the best mean is moe<b>sart</b> (0.3100); "
        "it is significantly better than topk (0.4100, p = 0.01).",
    ]


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_was_deleted_is_named_with_the_remedy(compared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared, tmp_path / "cmp"))
    shutil.rmtree(folder / "runs/1-seed0")
    with pytest.raises(DataError, match=r"1-seed0.metrics\.csv is missing.*run folder"):
        report(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_the_table_with_its_bold_cell_and_a_link_to_every_run(
    compared: Path, tmp_path: Path
) -> None:
    out = report(compared, tmp_path / "report")
    text = (out / "report.html").read_text()
    (bold,) = re.findall(r"<td><strong>(.*?)</strong></td>", text)
    assert re.sub(r"<.*?>", "", bold) == "0.3100 &plusmn; 0.0100"
    assert "moe<b>sart" not in text and "moe&lt;b&gt;sart&lt;/b&gt;" in text
    # topk's runs have 0 and 1 idle experts, the others' none
    means = re.findall(r"<td>(\d\.\d)</td>\s*</tr>", text)
    assert means == ["0.5", "0.0", "0.0"]
    links = [(out / link).resolve() for link in re.findall(r'href="(\.\.[^"]*)"', text)]
    assert links == [(compared / run.run).resolve() for run in example_results().runs]
    assert all((link / "metrics.csv").is_file() for link in links)
    figures = {file.stem for file in (out / "figures").glob("*.json")}
    assert figures == {"learning-0", "costs-0", "seeds-0-loss"}
    saved = json.loads((out / "figures/costs-0.json").read_text())["data"]
    assert saved["loss"] == costs(example_results().groups[0]).loss
    assert saved["error"][1] is None


def test_a_comparison_as_wide_as_the_papers_fits_a_window_of_1280(
    compared: Path, tmp_path: Path, browser: Any, undrawn: None
) -> None:
    """Two tasks, two kinds of cost, time and size, and the paper's three columns beside them."""
    folder = Path(shutil.copytree(compared, tmp_path / "cmp"))
    raw = json.loads((folder / "results.json").read_text())
    more = {
        **{"watch.auc": "watch AUC", "rating.mse": "rating MSE"},
        **{"experts_training": "experts, training", "seconds": "s/epoch"},
    }
    cell = {"mean": 0.1234, "standard_error": 0.0123, "n": 50}
    for name, title in more.items():
        raw["columns"].append({"name": name, "title": title, "better": None, "digits": 4})
    raw["columns"].append({"name": "size", "title": "parameters", "better": None, "digits": 0})
    for row in raw["groups"][0]["rows"]:
        size = {"size": {**cell, "mean": 12_345_678}}
        row["cells"] |= dict.fromkeys(["loss", *more], cell) | size
        row["paper"] = dict.fromkeys(["loss", "watch.auc", "rating.mse"], cell)  # of before
        row["router"], row["experts"] = "sinkhorn_base", "dense to sparse"
    for run in raw["runs"]:
        run["values"] |= dict.fromkeys(more, 0.1234) | {"size": 12_345_678}
    (folder / "results.json").write_text(json.dumps(raw))
    browser.get((report(folder, tmp_path / "out") / "report.html").as_uri())
    tables = "return [...document.querySelectorAll('.scroll')]"
    wide = f"{tables}.map((e) => e.scrollWidth - e.clientWidth)"
    with window(browser, 1280):
        assert excess(browser) <= 0
        assert max(browser.execute_script(wide)) <= 0
        assert "`" not in browser.find_element("tag name", "main").text


@pytest.mark.usefixtures("undrawn")
def test_no_finished_run_is_said(compared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared, tmp_path / "cmp"))
    raw = json.loads((folder / "results.json").read_text())
    raw["runs"], raw["groups"][0]["tests"] = [], []
    for row in raw["groups"][0]["rows"]:
        row |= {"cells": {}, "runs": 0, "bold": []}
    (folder / "results.json").write_text(json.dumps(raw))
    text = (report(folder, tmp_path / "out") / "report.html").read_text()
    assert "No run with these weights has finished yet." in text


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw.pop("groups"), lambda raw: raw["runs"][0].update(run="../../etc"), None],
)
def test_damaged_results_are_named(damage: object, compared: Path, tmp_path: Path) -> None:
    raw = json.loads((compared / comparison.RESULTS).read_text())
    if callable(damage):
        damage(raw)
    (tmp_path / comparison.RESULTS).write_text(json.dumps(raw) if damage else "[")
    with pytest.raises(DataError, match=r"results\.json is damaged"):
        read_results(tmp_path)
