"""The study of task weights: its runs, its rows, its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema
from research.weighting.log import write_log
from research.weighting.page import BEGIN, END, PAGE, tables, write_page
from research.weighting.rows import (
    FIGURES,
    METHODS,
    ROWS,
    SEEDS,
    Job,
    Row,
    append,
    config_of,
    jobs,
    read_rows,
)


def row(loss: float, minutes: float = 2.0) -> Row:
    return dict.fromkeys(FIGURES, 1.0) | {"loss": loss, "minutes": minutes}


def test_every_method_runs_with_every_seed_and_a_valid_configuration() -> None:
    assert len(set(jobs())) == len(METHODS) * sum(SEEDS.values()) == 90
    for job in jobs():
        config = parse_config(config_of(job))
        assert config.tasks.weighting.name == job.method
        assert config.trainer.seed == job.seed


def test_runs_of_a_log_differ_in_method_and_seed_alone() -> None:
    for log in SEEDS:
        bare = [config_of(Job(log, method, 1)) for method in METHODS]
        assert all(config["tasks"].pop("weighting") for config in bare)
        assert all(config == bare[0] for config in bare)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = {Job("conflict", "famo", 1): row(0.25), Job("ml-1m", "fixed", 0): {"minutes": 1.5}}
    for job, figures in written.items():
        append(job, figures, "abc", tmp_path / "rows.csv")
    found = read_rows(tmp_path / "rows.csv")
    assert found[Job("conflict", "famo", 1)] == row(0.25)
    assert found[Job("ml-1m", "fixed", 0)] == dict.fromkeys(FIGURES) | {"minutes": 1.5}


def test_the_table_compares_with_fixed_of_the_same_seeds_and_names_what_is_missing() -> None:
    """famo against fixed: .5 - .4 and .5 - .2, mean .2, standard error .1414 / sqrt(2) = .1."""
    fixed = {Job("ml-100k", "fixed", seed): row(loss) for seed, loss in enumerate((0.4, 0.2, 9))}
    famo = {Job("ml-100k", "famo", seed): row(0.5) for seed in range(2)}
    text = "\n".join(tables({**fixed, **famo}))
    assert "| famo | 2 | 0.5000 | +0.2000 +- 0.1000 |" in text
    assert "**Unfinished: 20 of 25 runs are missing.**" in text
    assert "ml-100k 40 (20 runs), ml-1m unknown (15 runs)." in text.replace("\n", " ")


def test_the_page_is_what_the_rows_give(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_bytes(PAGE.read_bytes())
    write_page(read_rows(ROWS), copy)
    assert copy.read_text() == PAGE.read_text()
    copy.write_text(f"{END} before {BEGIN}")
    with pytest.raises(ValueError, match="must have"):
        write_page({}, copy)


def test_the_log_has_two_tasks_of_every_row(tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    schema = Schema.load(tmp_path / "log")
    assert [(task.name, task.kind) for task in schema.tasks] == [
        ("like", "binary"),
        ("score", "regression"),
    ]
    labels = schema.labels["train"]
    assert labels["like"]["labelled"] == labels["score"]["labelled"] > 5_000
