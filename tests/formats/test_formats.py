"""Folders that earlier versions wrote are read and give the scores that they gave then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recsys_moe import Predictor
from tests.conftest import Command
from tests.formats.make import MODELS, STUDIES, scores

HERE = Path(__file__).parent
KEPT = sorted(path.parent for path in HERE.glob("*/*/expected.json"))
"""`VERSION/ids`, `features`, `histories`, `bounded` and `slopes`; see make.py."""
VERSIONS = sorted(path for path in HERE.glob("*") if (path / "ids").is_dir())


def test_every_version_has_kept_all_its_kinds() -> None:
    assert "0.1" in {version.name for version in VERSIONS}
    for version in VERSIONS:
        assert {path.name for path in version.iterdir()} == {*MODELS, *STUDIES}


def test_kept_studies_hold_what_later_starts_read() -> None:
    assert VERSIONS and STUDIES
    for version in VERSIONS:
        assert (version / "study" / "study.db").is_file()
        assert all((version / name / "plan.json").is_file() for name in STUDIES)


@pytest.fixture(params=KEPT, ids=lambda path: str(path.relative_to(HERE)))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, of which nothing can be lost."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_a_kept_model_gives_the_scores_that_it_gave(kept: Path) -> None:
    expected = json.loads((kept / "expected.json").read_text())
    for name, values in scores(kept / "run" / "model").items():
        assert values == pytest.approx(expected[name], abs=1e-5)


def test_kept_data_train_a_new_model(kept: Path, tmp_path: Path, command: Command) -> None:
    done = command("fit", "--data", kept / "data", "--out", tmp_path / "new", "--max-epochs", 1)
    assert done.exit_code == 0, done.err


def test_a_kept_checkpoint_is_continued(kept: Path, command: Command) -> None:
    run = kept / "run"
    shutil.rmtree(run / "model")
    settings = ("--config", run / "config.yaml", "--resume", "auto", "--max-epochs", 13)
    done = command("fit", "--data", kept / "data", "--out", run, *settings)
    assert done.exit_code == 0, done.err
    epochs = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()]
    assert epochs[-1] == "13"


def test_a_kept_model_of_histories_says_what_moved_a_score() -> None:
    assert VERSIONS
    for version in VERSIONS:
        predictor = Predictor.load(version / "histories" / "run" / "model")
        (of_pair,) = predictor.attributions([7], [15])
        assert {attribution.kind for attribution in of_pair["watch"]} >= {"history"}


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def studies(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's folders."""
    return Path(shutil.copytree(request.param, tmp_path / "studies"))


def go_on(command: Command, studies: Path, name: str, *more: object) -> None:
    data = ("--data", studies / "ids" / "data")
    done = command(*STUDIES[name], *data, "--out", studies / name, *more)
    assert done.exit_code == 0, done.err


def test_a_kept_comparison_is_finished_as_it_is(studies: Path, command: Command) -> None:
    before = figures(studies)
    go_on(command, studies, "comparison", "--seeds", 1)
    assert figures(studies) == before


@pytest.mark.slow
def test_a_kept_study_goes_on_with_a_second_trial(studies: Path, command: Command) -> None:
    first = trials(studies)
    go_on(command, studies, "study", "--trials", 2)
    assert [len(first), len(trials(studies))] == [1, 2] and trials(studies)[0] == first[0]


@pytest.mark.parametrize(("name", "size"), [("comparison", "--seeds"), ("study", "--trials")])
def test_a_plan_from_before_a_setting_was_there_has_its_default(
    studies: Path, command: Command, name: str, size: str
) -> None:
    plan = studies / name / "plan.json"
    raw = json.loads(plan.read_text())
    holders = raw["contenders"].values() if "contenders" in raw else [raw]
    (config,) = (holder["config"] for holder in holders)
    del config["model"]["skip_rank"]
    plan.write_text(json.dumps(raw))
    go_on(command, studies, name, size, 1)


def figures(studies: Path) -> Any:
    """All but the seconds, which are in the logs, and those are not kept, and the notes: words."""
    results = json.loads((studies / "comparison" / "results.json").read_text())
    for row in (row for group in results["groups"] for row in group["rows"]):
        row.pop("paper", None)  # figures of the MOESART paper, written by 0.1 alone
    return without_seconds({name: value for name, value in results.items() if name != "notes"})


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: v for key, v in value.items() if not key.startswith("seconds_")}
        return {key: without_seconds(v) for key, v in kept.items()}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def trials(studies: Path) -> list[dict[str, object]]:
    return list(json.loads((studies / "study" / "trials.json").read_text())["trials"])
