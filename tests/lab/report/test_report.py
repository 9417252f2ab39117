"""`recsys-moe report` from end to end: files, refusals, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recsys_moe.artifact.baselines import missed
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.idle import IDLE_WORDS
from recsys_moe.cli import app
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.report.page import TEMPLATES
from tests.lab.report.conftest import IDLE, report
from tests.looks import SCHEMES, WIDTHS, excess, faint_texts, window

FIGURES = {
    *("learning", "load", "likeness", "entropy", "mass", "consistency", "roc-watch"),
    *("calibration-watch", "error-watch", "error-rating", "genres-watch", "genres-rating"),
}


def test_every_figure_has_its_image_its_drawing_and_its_data(lame_report: Path) -> None:
    files = {file.name for file in (lame_report / "figures").iterdir()}
    assert files == {f"{name}.{end}" for name in FIGURES for end in ("json", "png", "svg")}
    for name in FIGURES:
        content = json.loads((lame_report / "figures" / f"{name}.json").read_text())
        assert content.keys() == {"title", "sources", "data"}
        assert content["sources"]


def test_the_numbers_are_those_of_the_run_folder(lame: Path, lame_report: Path) -> None:
    sources = json.loads((lame_report / "report.json").read_text())
    expected = evaluate_artifact(lame, "test", None)
    del expected["trained_on_these_data"], expected["segments"]  # which is a table of its own
    assert sources["evaluation"] == expected
    assert {"metrics.csv", "routing.safetensors", "model/manifest.json"} == set(sources["files"])
    page = (lame_report / "report.html").read_text()
    for value in (expected["loss"], expected["tasks"]["watch"]["auc"]):
        assert f'<dd class="value">{value:.4f}</dd>' in page
    popular = expected["baselines"]["watch"]["popularity"]["auc"]
    assert f"popularity {popular:.4f}" in page


def test_the_findings_say_what_the_model_is_worth_and_then_which_expert_is_idle(
    lame_report: Path,
) -> None:
    evaluation = json.loads((lame_report / "report.json").read_text())["evaluation"]
    behind = [f"{line}." for line in missed(evaluation)]
    found = json.loads((lame_report / "findings.json").read_text())
    words = f"Idle: expert {IDLE}, visited by 0.0% of examples (an even share would be"
    place = next(n for n, one in enumerate(found) if one["text"].startswith(words))
    assert behind and {one["text"] for one in found[:place]} >= set(behind)
    assert found[place]["level"] == "warning" and found[place]["figure"] == "load"


def test_each_metric_has_its_baselines(lame_report: Path) -> None:
    result = json.loads((lame_report / "report.json").read_text())["evaluation"]
    page = (lame_report / "report.html").read_text()
    bounds = {name: one["mse"] for name, one in result["baselines"]["rating"].items()}
    beat = f"mean {bounds['mean']:.4f}, user item mean {bounds['user_item_mean']:.4f}"
    row = f'<th scope="row">rating mse</th><td>{result["tasks"]["rating"]["mse"]:.4f}</td>'
    assert f'{row}\n<td><span class="words">{beat}</span></td>' in page  # in Quality
    assert f"lower is better; baseline: {beat}</dd>" in page  # in the key numbers
    assert re.search(r'<th scope="row">rating mae</th>.*\n<td><span class="words">-</span>', page)


def test_an_evaluation_without_baselines_shows_none() -> None:
    parts: Any = TEMPLATES.get_template("parts.html").module
    found = {"baselines": {"watch": {"popularity": {"auc": 0.5}, "base_rate": {"auc": None}}}}
    shown = [parts.baseline(result, "watch", "auc").strip() for result in (found, {})]
    assert shown == ["popularity 0.5000", ""]
    assert list(missed({"tasks": {"watch": {"auc": 0.4}}})) == []


def test_the_page_names_nothing_outside_of_itself(lame_report: Path) -> None:
    text = (lame_report / "report.html").read_text()
    for name in ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"):
        text = text.replace(name, "")  # names of namespaces, never fetched
    assert "://" not in text and "@import" not in text
    assert set(re.findall(r'(?:src|href)="([^"#]{1,5})', text)) <= {"data:"}
    assert "<script" not in text
    assert "&lt;script&gt;document.title" in text  # a genre that would like to be markup
    assert "lame &lt;run&gt;" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'<a [^>]*href="#([^"]*)"', text)) <= set(ids)


@pytest.mark.usefixtures("undrawn")
def test_the_same_run_gives_the_same_numbers(lame: Path, lame_report: Path, tmp_path: Path) -> None:
    again = report(lame, tmp_path / "again")
    for file in sorted(lame_report.rglob("*.json")):
        assert (again / file.relative_to(lame_report)).read_bytes() == file.read_bytes(), file


@pytest.fixture
def opened(browser: Any, lame_report: Path, tmp_path: Path) -> Any:
    """The page alone, without the files beside it."""
    alone = shutil.copyfile(lame_report / "report.html", tmp_path / "alone.html")
    browser.get(alone.as_uri())
    return browser


def test_the_page_opens_alone_without_a_complaint_or_a_request(opened: Any) -> None:
    assert opened.title == "Run lame <run>"
    fetched = opened.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert opened.get_log("browser") == []
    assert opened.find_elements("css selector", "script, iframe, object, img[src^=http]") == []


def test_a_reader_finds_the_idle_expert_and_every_figure_has_words(opened: Any) -> None:
    warning = opened.find_element("css selector", ".warning:has([href='#figure-load'])")
    assert f"Idle: expert {IDLE}" in warning.text
    warning.find_element("tag name", "a").click()
    assert opened.current_url.endswith("#figure-load")
    bad = opened.find_elements("css selector", "#experts tr:has(.bad) th")
    assert [cell.text for cell in bad] == [str(IDLE)]
    pictures = opened.find_elements("css selector", "figure .picture")
    assert len(pictures) == len(FIGURES)
    assert all(picture.get_attribute("aria-label") for picture in pictures)
    assert all(picture.size["height"] > 100 for picture in pictures)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window_and_all_text_can_be_read(
    opened: Any, width: int, scheme: str
) -> None:
    with window(opened, width, scheme):
        assert excess(opened) <= 0
        figures = opened.find_elements("css selector", ".picture svg")
        assert min(figure.size["width"] for figure in figures) > 500  # they scroll, and are read
        assert faint_texts(opened) == []


def test_idle_is_said_as_the_page_says_it_and_no_markup_is_left(opened: Any) -> None:
    text = opened.find_element("tag name", "main").text
    assert IDLE_WORDS in text
    assert "`" not in text


def test_a_dark_page_has_light_ink_in_its_figures(opened: Any) -> None:
    def ink() -> str:
        first = "document.querySelector('#load-text_1 g')"
        return str(opened.execute_script(f"return getComputedStyle({first}).fill"))

    inks = {}
    for scheme in SCHEMES:
        with window(opened, 1280, scheme):
            inks[scheme] = ink()
    assert inks == {"light": "rgb(35, 40, 43)", "dark": "rgb(230, 232, 230)"}


@pytest.mark.usefixtures("undrawn")
def test_what_is_at_out_stays_unless_it_is_a_report(compared: Path, tmp_path: Path) -> None:
    out = report(compared, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--out .*out exists.*--overwrite"):
        report(compared, out)
    (out / "findings.json").write_text("gone after --overwrite")
    report(compared, out, overwrite=True)
    assert (out / "findings.json").read_text() != "gone after --overwrite"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not a report"):
        report(compared, tmp_path / "mine", overwrite=True)


@pytest.mark.usefixtures("undrawn")
def test_a_report_that_fails_leaves_nothing(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recsys_moe.lab.report.build.document", fails)
    with pytest.raises(OSError, match="No space"):
        report(compared, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_settings_of_runs_are_refused_for_a_comparison(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a comparison, .*no --split, --rows; leave"):
        report(compared, tmp_path / "out", split="val", rows=5)


def test_wrong_settings_and_folders_are_named(run: Path, compared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--split .*train, val, test, got 'tset'"):
        report(run, tmp_path / "out", split="tset")
    with pytest.raises(DataError, match="is neither a run, a model nor a comparison"):
        report(tmp_path, tmp_path / "out")
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError, match=r"has no results.json yet"):
        report(tmp_path, tmp_path / "out")


@pytest.mark.usefixtures("undrawn")
def test_a_model_folder_alone_needs_its_data_and_has_no_curves(
    run: Path, prepared: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(run / "model", tmp_path / "model"))
    with pytest.raises(DataError, match="pass --data DIR"):
        report(model, tmp_path / "out")
    out = report(model, tmp_path / "out", data=prepared, rows=80, split="val")
    figures = {file.stem for file in (out / "figures").glob("*.json")}
    assert not figures & {"learning", "consistency"}
    page = (out / "report.html").read_text()
    assert "This model has no metrics.csv." in page
    assert "a sample of 80 of the 225 rows" in page


@pytest.mark.usefixtures("undrawn")
def test_another_evaluation_on_record_is_a_warning(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    file = folder / "evaluation" / "val.json"
    recorded = json.loads(file.read_text())
    for factor, differs in ((1 + 8e-5, False), (1 + 2e-4, True)):
        file.write_text(json.dumps({**recorded, "loss": factor * recorded["loss"]}))
        found = findings(report(folder, tmp_path / f"{differs}", split="val"))
        assert ("evaluation/val.json of the run has" in found) == differs


def findings(out: Path) -> str:
    return (out / "findings.json").read_text()


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_findings_as_json_or_in_words(compared: Path, tmp_path: Path) -> None:
    def printed(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["report", str(compared), "--out", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    found = json.loads(printed(str(tmp_path / "one"), "--json"))
    assert found == json.loads(findings(tmp_path / "one"))
    first, *lines = printed(str(tmp_path / "two")).splitlines()
    assert first == f"{tmp_path / 'two' / 'report.html'}: 2 warnings"
    assert lines == [f"  {finding['level']}: {finding['text']}" for finding in found]
