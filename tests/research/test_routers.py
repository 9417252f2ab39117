"""The comparison of all routers: its settings, its order of work, its rows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from recsys_moe.config.settings import parse_config
from recsys_moe.routers import ROUTERS, RouterShape, find_router
from research.routers import page
from research.routers.__main__ import left, main, next_job, read_settings
from research.routers.logs import LOGS, Log, prepare, table_of
from research.routers.order import AGAIN, MATTER, TRIALS, chosen, contenders, remaining
from research.routers.rows import Job, Row, all_rows, append, earlier, read_rows
from research.routers.run import config_of, finish
from tests.conftest import TINY_MODEL

SMALL = {"a": {"a1": {}, "a2": {}}, "b": {"b1": {}, "b2": {}}, "c": {"c1": {}, "c2": {}}}


def row(
    router: str, setting: str, val: float | None, test: float | None = None, seed: int = 0
) -> Row:
    return Row(Job("ml-100k", router, setting, seed), {"val.loss": val, "loss": test}, "abc")


def by_job(*rows: Row) -> dict[Job, Row]:
    return {row.job: row for row in rows}


def test_every_router_has_six_valid_trials_and_every_label_one_router() -> None:
    settings = read_settings()
    assert set(ROUTERS) <= set(settings)
    labels = [label for of_router in settings.values() for label in of_router]
    assert len(labels) == len(set(labels)) == TRIALS * len(settings)
    for router, of_router in settings.items():
        configs = [config_of(Job("ml-100k", router, label, 3), settings) for label in of_router]
        parsed = [parse_config(config) for config in configs]
        assert all(config.trainer.seed == 3 for config in parsed)
        assert len({config.model_dump_json() for config in parsed}) == TRIALS


def test_a_setting_is_what_the_earlier_study_ran_under_its_label() -> None:
    """moesart_4 of ml-100k-trials.yaml: the shipped configuration as it is."""
    config = config_of(Job("ml-100k", "moesart", "moesart_4", 0), read_settings())
    assert config["model"]["router"] == {"name": "moesart", "temperature": 1.0}
    assert (config["optim"]["lr"], config["trainer"]["patience"]) == (4e-3, 8)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [row("a", "a1", 0.4123, 0.42), row("a", "a2", None), row("a", "a1", 0.5, 0.6, seed=1)]
    for one in rows:
        append(one, tmp_path / "rows.csv")
    found = read_rows(tmp_path / "rows.csv")
    assert [(r.job, r["val.loss"], r["loss"], r.commit) for r in found.values()] == [
        (r.job, r["val.loss"], r["loss"], "abc") for r in rows
    ]


def test_earlier_rows_are_kept_with_their_commit_and_new_ones_stand_before_them(
    tmp_path: Path,
) -> None:
    settings = read_settings()
    found = earlier(settings)
    first = found[AGAIN]
    assert (first["loss"], first["val.loss"], first.commit) == (0.410422, 0.408967, "18c0cd5")
    trial = found[Job("ml-100k", "pps", "pps_4", 0)]
    assert (trial["loss"], trial.commit) == (None, "01c31ae")
    append(Row(AGAIN, {"loss": 0.5}, "new"), tmp_path / "rows.csv")
    assert all_rows(settings, tmp_path / "rows.csv")[AGAIN].commit == "new"


def test_a_run_of_the_earlier_study_comes_first_and_then_two_trials_of_unknown_routers() -> None:
    known = by_job(row("a", "a1", 0.40, 0.41), row("a", "a2", 0.41), row("b", "b1", 0.6))
    jobs = remaining(SMALL, known, {})
    assert jobs[0] == AGAIN
    assert [job.setting for job in jobs[1:5]] == ["b1", "c1", "b2", "c2"]


def test_contenders_are_within_a_hundredth_of_the_lowest_and_get_their_seeds_first() -> None:
    """.40 and .409 are, .42 is not; b's second trial is its better one."""
    known = by_job(
        row("a", "a1", 0.40, 0.41),
        row("a", "a2", 0.405),
        row("b", "b1", 0.43),
        row("b", "b2", 0.409),
        row("c", "c1", 0.42),
        row("c", "c2", 0.44),
    )
    assert contenders(SMALL, known) == ["a", "b"]
    assert chosen("b", known) == "b2"
    jobs = remaining(SMALL, known, {AGAIN: known[next(iter(known))]})
    names = [(job.setting, job.seed) for job in jobs if job.log == "ml-100k"]
    # b2 was tried on validation alone, so its seed 0 is run again for test.
    assert names[:5] == [("b2", 0), ("a1", 1), ("b2", 1), ("a1", 2), ("b2", 2)]
    assert names[5:9] == [("a1", 3), ("b2", 3), ("a1", 4), ("b2", 4)]
    assert names[9:] == [("c1", seed) for seed in range(5)]


@pytest.mark.parametrize("weights", ["0.9,0.1", "0.1,0.9"])
def test_both_pairs_of_weights_and_the_larger_log_are_planned(weights: str) -> None:
    jobs = remaining(SMALL | {"moesart": {"m1": {}}}, by_job(row("moesart", "m1", 0.4)), {})
    assert any(job.weights == weights for job in jobs)
    assert any(job.log == "ml-1m" for job in jobs)


def test_a_table_has_means_errors_and_corrected_p_values_against_moesart() -> None:
    """Losses .4, .42 and .5, .52: means .41 and .51, errors .01 each, t = .1 / sqrt(.0002) = 7.07
    with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2) = .0194; one test, so Holm leaves it."""
    settings = {"moesart": {"m1": {}, "m2": {}}, "b": {"b1": {}}}
    rows = by_job(
        *(row("moesart", "m1", 0.39, 0.4 + 0.02 * seed, seed) for seed in (0, 1)),
        row("moesart", "m2", 0.395, 0.3),
        *(row("b", "b1", 0.5, 0.5 + 0.02 * seed, seed) for seed in (0, 1)),
    )
    rows = {job: Row(job, {**r.figures, "experts_training": 2.0}, "abc") for job, r in rows.items()}
    lines = page.lines_of(settings, rows, "ml-100k", "0.9,0.1")
    assert [(line.router, line.setting, line.trials) for line in lines] == [
        ("moesart", "m1", 2),
        ("b", "b1", 1),
    ]
    assert page.p_values(lines) == {"b": pytest.approx(0.0194, abs=1e-4)}
    text = page.table(lines)
    assert "| `moesart` | `m1` | 2 | 2 | 0.4100 +- 0.0100 | - | - |" in text
    assert "| `b` | `b1` | 1 | 2 | 0.5100 +- 0.0100 | +0.1000 | 0.019 |" in text


def test_what_is_missing_has_hours_by_measured_minutes() -> None:
    """a: 6 minutes a run, 10 of them an hour; b, with 16 experts, unmeasured: MANY_MINUTES."""
    a = Row(Job("ml-100k", "a", "a1", 0), {"val.loss": 0.4, "minutes": 6.0, "resumed": 0.0}, "x")
    b = Row(Job("ml-100k", "b", "b1", 0), {"val.loss": 0.5, "experts_training": 16.0}, "x")
    rows = {a.job: a, b.job: b}
    assert page.minutes_of(Job("ml-100k", "a", "a2", 3), rows) == 6
    assert page.minutes_of(Job("ml-1m", "a", "a2", 3), rows) == 6 * page.LARGE
    assert page.minutes_of(Job("ml-100k", "b", "b2", 0), rows) == page.MANY_MINUTES


def test_the_page_is_what_its_rows_give() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.block(read_settings(), read_settings("routing"))) == text
    with pytest.raises(ValueError, match="must have the lines"):
        page.filled("no markers", "")


def test_the_command_lists_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--plan"])
    assert "ml-1m-" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([])


def test_configurations_of_the_question_whether_routing_matters_are_valid_and_queued() -> None:
    """6 groups; 16 labels on ml-100k and 6 on each of four variants; ml-1m last."""
    matter = read_settings("routing")
    jobs = [job for job in remaining({}, {}, {}, matter) if job.router.startswith(MATTER)]
    assert len(jobs) == 3 * (16 + 4 * 6 + 6) and len(set(jobs)) == len(jobs)
    assert [job.log for job in jobs].index("ml-1m") == 3 * (16 + 4 * 6)
    for job in jobs:
        config = config_of(job, matter)
        assert list(config["tasks"]) == list(LOGS[job.log].tasks)
        parse_config(config)
    wide = parse_config(config_of(Job("ml-100k", "matter_wide", "matter_wide", 0), matter)).model
    assert (wide.num_experts, wide.expert_dim) == (1, 2 * 256)


def test_the_fixed_router_gives_each_user_k_experts_that_stay() -> None:
    make = find_router("research.routers.fixed:FixedRandomRouter")
    routers = [make(make.Config(k=2), RouterShape(4, 8, 9, task, 2)) for task in (0, 1)]
    users = torch.tensor([0, 3, 9, 3])
    first, second = (router.train()(torch.randn(4, 4), users) for router in routers)
    assert first.selected_BE.sum(-1).tolist() == [2] * 4 and first.weights_BE.sum(-1).eq(1).all()
    assert torch.equal(first.selected_BE[1], first.selected_BE[3])
    assert not torch.equal(first.selected_BE, second.selected_BE)
    again = make(make.Config(k=2), RouterShape(4, 8, 9, 0, 2))
    assert torch.equal(routers[0].selected_UE, again.selected_UE)


def test_a_log_has_the_ratings_of_its_users_and_the_labels_of_its_tasks(tmp_path: Path) -> None:
    lines = [(user, item, 1 + (user + item) % 5, 9) for user in range(1, 9) for item in range(3)]
    (tmp_path / "u.data").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    table = table_of(Log(users=5), tmp_path / "u.data")
    assert table["user"].nunique() == 5 and len(table) == 15
    assert (table["liked"] == (table["rating"] > 3)).all()
    assert (table["loved"] == (table["rating"] == 5)).all()
    said: list[tuple[object, ...]] = []
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "u.data").rename(tmp_path / "ml-100k" / "u.data")
    prepare("ml-100k-tasks4", tmp_path, tmp_path, lambda *words: said.append(words))
    prepare("ml-1m", tmp_path, tmp_path, lambda *words: said.append(words))
    assert said[0].count("--task") == 4 and said[1][:4] == (
        "prepare",
        "movielens",
        "--variant",
        "1m",
    )


def test_losses_stand_by_log_and_experts_in_a_column_per_group() -> None:
    matter = {"matter_a": {}, "matter_b": {}}
    assert page.matter_table(matter, {}) == ""
    rows = by_job(
        row("matter_a", "matter_a", 0.5, 0.41),
        row("matter_a", "matter_a", 0.5, 0.43, seed=1),
        row("matter_b", "matter_b_64_experts", 0.5, 0.44),
    )
    lines = page.matter_table(matter, rows).splitlines()[2:]
    assert lines == [
        "| ml-100k | 16 | 0.4200 +- 0.0100 (2) | - |",
        "| ml-100k | 64 | - | 0.4400 (1) |",
    ]


@pytest.mark.slow
def test_a_run_is_trained_and_tested_by_the_commands_and_leaves_its_row_alone(
    prepared: Path, tmp_path: Path
) -> None:
    """The loss is the weighted sum of the figures that `evaluate` prints for both splits."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ml-100k").symlink_to(prepared)
    tiny = {"model": {**TINY_MODEL, "expert_dim": 8}, "trainer": {"max_epochs": 2}}
    tiny["model"].pop("router", None)
    job = Job("ml-100k", "topk", "topk_4", 1)
    done = finish(job, {"topk": {"topk_4": tiny}}, tmp_path / "data", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    append(done, tmp_path / "rows.csv")
    (read,) = read_rows(tmp_path / "rows.csv").values()
    assert read.job == job and read["epochs"] == 2 and read["resumed"] == 0
    for split in ("val.", ""):
        loss, auc, mse = (read[split + name] for name in ("loss", "watch.auc", "rating.mse"))
        assert loss is not None and auc is not None and mse is not None
        assert 0.1 * mse < loss and 0 < auc < 1
    assert (read["minutes"] or 0) > 0 and 2 <= (read["experts_training"] or 0) <= 4


def test_a_run_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    words = {"data": tmp_path, "out": tmp_path, "source": None, "rows": tmp_path / "rows.csv"}
    options = argparse.Namespace(**words)
    first, second = left(options.rows)[:2]
    with next_job(options) as taken, next_job(options) as other:
        assert (taken, other) == (first, second)
    with next_job(options) as free_again:
        assert free_again == first


def test_without_data_there_is_no_run_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert f"{tmp_path / 'none'} lacks the data of" in capsys.readouterr().err
