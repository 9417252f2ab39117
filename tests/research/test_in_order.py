"""The study of models that read the order of events: its rows and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.config.settings import parse_config
from research.in_order.__main__ import Job, append, done, jobs, rows_of, settings
from research.in_order.page import BEGIN, END, FIGURES, write_page


def row(seed: int, ndcg: float, **more: float) -> dict[str, object]:
    figures = dict.fromkeys(FIGURES, 0.5) | {"ndcg": ndcg, "minutes": 20.0} | more
    return {**Job("movielens_1m_next", "moesart", seed)._asdict(), **figures}


def test_every_run_is_a_shipped_configuration_with_its_router_and_is_named_once() -> None:
    assert len({job.name for job in jobs()}) == len(list(jobs())) == 18  # 3 x (4 data + 2 routers)
    for job in jobs():
        config = parse_config(settings(job))
        assert (config.model.router.name, config.trainer.seed) == (job.router, job.seed)
        assert (config.model.time_features == "all") == job.config.endswith("+time")
        assert job.router == "softmax" or config.model.router.k == 2


def test_rows_may_have_more_figures_than_those_before_them(tmp_path: Path) -> None:
    old = row(0, 0.18)
    del old["ndcg_shuffled"]
    for one in (old, row(1, 0.2)):
        append(tmp_path / "rows.csv", one)
    found = rows_of(tmp_path / "rows.csv")
    assert [one["ndcg_shuffled"] for one in found] == ["", "0.5"]
    assert [one["ndcg"] for one in found] == ["0.18", "0.2"]
    assert done(tmp_path / "rows.csv") == {f"movielens_1m_next-moesart-seed{n}" for n in (0, 1)}
    assert done(tmp_path / "none.csv") == set()


def test_the_page_has_mean_and_deviation_of_the_seeds(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for seed, ndcg in enumerate((0.18, 0.2)):
        append(tmp_path / "rows.csv", row(seed, ndcg))
    page.write_text(f"Before.\n\n{BEGIN}\n{END}\n\nAfter.\n")
    write_page(tmp_path / "rows.csv", page)
    # deviation of .18 and .2: sqrt(2 x .01^2 / 1) = .0141
    assert "| `movielens_1m_next` | moesart | 2 | 0.1900 +- 0.0141 | 0.5000 +- 0.0000 |" in (
        text := page.read_text()
    )
    assert text.startswith("Before.") and text.endswith("After.\n")
    page.write_text("No marks.")
    with pytest.raises(ValueError, match="must have"):
        write_page(tmp_path / "rows.csv", page)
