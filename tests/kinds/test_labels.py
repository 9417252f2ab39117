"""Labels at the door of `prepare`, and all kinds in one model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep import table
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.kinds import KINDS
from recsys_moe.schema import Schema
from tests.conftest import Command
from tests.kinds.test_end_to_end import SMALL, log_of

IDS = {"user": "user", "item": "item"}


def frame(labels: list[object]) -> pd.DataFrame:
    rows = len(labels)
    return pd.DataFrame({"user": np.arange(rows) % 7, "item": np.arange(rows), "label": labels})


def prepared(
    labels: list[object], kind: str, out: Path, suffix: str = "csv", **more: str
) -> Schema:
    file = out.with_suffix(f".{suffix}")
    data = frame(labels)
    data.to_csv(file, index=False) if suffix == "csv" else data.to_parquet(file, index=False)
    return table.prepare(out, input=file, **IDS, tasks=[f"mine:{kind}=label"], **more)


@pytest.mark.parametrize(
    ("kind", "label", "rule"),
    [
        ("ranking", 2, "be 0 or 1"),
        ("count", 1.5, "be a whole number of at least 0"),
        ("count", -1, "be a whole number of at least 0"),
        ("duration", 0, "be a finite number above 0"),
        ("ordinal", "many", "be a finite number"),
    ],
)
def test_a_wrong_label_is_named_with_its_place(
    kind: str, label: object, rule: str, tmp_path: Path
) -> None:
    labels: list[object] = [1.0] * 40
    labels[5] = label
    said = rf"line 7: label must {rule} \(or empty, if missing\), got .*{label}"
    with pytest.raises(DataError, match=said):
        prepared(labels, kind, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["binary", "ranking"])
def test_yes_and_no_are_1_and_0_like_true_and_false(kind: str, tmp_path: Path) -> None:
    texts: list[object] = ["yes", "No ", "TRUE", "false", "1", "0", ""] * 10
    digits: list[object] = [1, 0, 1, 0, 1, 0, None] * 10
    found = [
        prepared(labels, kind, tmp_path / name).labels
        for name, labels in {"texts": texts, "digits": digits}.items()
    ]
    assert found[0] == found[1]
    assert sum(counts["mine"]["positive"] for counts in found[0].values()) == 30
    with pytest.raises(DataError, match="label must be a finite number"):
        prepared(texts, "regression", tmp_path / "numbers")


@pytest.mark.parametrize("label", [5, "skipped"])
def test_a_refused_flag_says_what_to_do_with_stars_and_names(
    label: object, tmp_path: Path, command: Command
) -> None:
    frame([1] * 20 + [label]).to_csv(tmp_path / "log.csv", index=False)
    words = ["--input", tmp_path / "log.csv", "--user", "user", "--item", "item"]
    said = command.fails(
        3, "prepare", "table", *words, "--task", "watch:binary=label", "--out", tmp_path / "out"
    )
    assert said.endswith(
        f"line 22: label must be 0 or 1 (or empty, if missing), got '{label}'; add a column of 0 "
        "and 1, e.g. of label >= 4, and name that, or learn label as regression (numbers) or "
        "multiclass (names); or pass --skip-bad-rows to skip such rows"
    )


def test_the_summary_of_classes_names_the_largest_and_not_a_mean(
    tmp_path: Path, command: Command
) -> None:
    frame(["calm"] * 60 + ["glad"] * 30 + ["sad"] * 10).to_csv(tmp_path / "log.csv", index=False)
    words = ["--input", tmp_path / "log.csv", "--user", "user", "--item", "item"]
    words += ["--task", "mood:multiclass=label", "--out", tmp_path / "out"]
    lines = command("prepare", "table", *words).out.splitlines()
    for split, counts in Schema.load(tmp_path / "out").labels.items():
        rows, calm = counts["mood"]["labelled"], counts["mood"]["level 0.0"]
        [line] = [line for line in lines if line.split()[0] == split]
        assert line.endswith(f"mood {rows} labelled, 3 classes, 'calm' has {calm / rows:.1%}")


@pytest.mark.parametrize(
    ("kind", "what"), [("ordinal", "different values"), ("multiclass", "classes")]
)
def test_too_many_levels_are_refused(kind: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"labels of mine must have .*32 {what}.*; "):
        prepared([n % 33 for n in range(400)], kind, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_classes_are_named_in_order_and_missing_ones_stay_missing(tmp_path: Path) -> None:
    text = prepared(["b", "a", None, " a "] * 30, "multiclass", tmp_path / "text").tasks[0]
    assert (text.classes, text.levels) == (("a", "b"), (0.0, 1.0))
    numbers = prepared([10.0, 9.0, None] * 30, "multiclass", tmp_path / "numbers", "parquet")
    assert numbers.tasks[0].classes == ("9", "10")
    assert sum(counts["mine"]["labelled"] for counts in numbers.labels.values()) == 60
    assert Schema.load(tmp_path / "numbers") == numbers


def test_a_class_must_not_take_the_name_of_a_column(tmp_path: Path) -> None:
    data = frame(["a", "b"] * 40).assign(other=1.0)
    data.to_csv(tmp_path / "log.csv", index=False)
    tasks = ["mine:multiclass=label", "mine_a:regression=other"]
    with pytest.raises(DataError, match=r"column of probabilities would be 'mine_a'.*rename"):
        table.prepare(tmp_path / "data", input=tmp_path / "log.csv", **IDS, tasks=tasks)


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"labels of mine must have 2 to 32 classes, got 1; "):
        prepared(["a", None] * 20, "multiclass", tmp_path / "data")


def test_engines_in_pieces_refuse_classes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--engine stream needs labels that are numbers, got .*"):
        prepared(["a"] * 40, "multiclass", tmp_path / "data", engine="stream", protocol="hash")


@pytest.mark.slow
@pytest.mark.parametrize("router", ["moesart", "thor"])
def test_all_kinds_learn_in_one_model(router: str, command: Command, tmp_path: Path) -> None:
    """With missing labels, weights of rows, a router of one or two passes, and equal labels."""
    log = pd.read_csv(log_of(tmp_path)).assign(weight=lambda rows: 0.5 + rows["user"] % 3)
    log["same"] = 3.0
    log.to_csv(tmp_path / "log.csv", index=False)
    named = {f"a_{kind}": (kind, kind) for kind in KINDS}
    equal = [kind for kind in KINDS if not (KINDS[kind].has_positives or KINDS[kind].reads_text)]
    named |= {f"equal_{kind}": (kind, "same") for kind in equal}
    specs = [f"{name}:{kind}={column}" for name, (kind, column) in named.items()]
    tasks = [word for spec in specs for word in ("--task", spec)]
    data, run = tmp_path / "data", tmp_path / "run"
    options = ["--user", "user", "--item", "item", "--weight", "weight", "--out", data]
    done = command("prepare", "table", "--input", tmp_path / "log.csv", *tasks, *options)
    assert done.exit_code == 0, done.err
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    fit = ["fit", "--data", data, "--router", router, "--max-epochs", 3, "--out", run]
    done = command(*fit, "--config", config)
    assert done.exit_code == 0, done.err
    result = json.loads(command("evaluate", run, "--split", "test", "--json").out)
    assert {*result["tasks"]} == {*named}
    for name, (kind, _) in named.items():
        value = result["tasks"][name][KINDS[kind].loss_metric]
        assert value is not None and np.isfinite(value), name
    scores = tmp_path / "scores.parquet"
    assert command("predict", run, "--input", log_of(tmp_path), "--output", scores).exit_code == 0
    found = pd.read_parquet(scores)
    assert not found[[c for c in found if re.match("a_|equal_", c)]].isna().any(axis=None)
    listed = command("recommend", run, "--user", 3, "--score", "a_count", "--json")
    assert len(json.loads(listed.out)["items"]) == 10
