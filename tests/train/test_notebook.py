"""`recsys_moe.fit`: data first, settings optional; in a notebook a bar and printed lines."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import recsys_moe
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.train import notebook
from recsys_moe.train.notebook import Shown, in_notebook
from tests.conftest import TINY_MODEL

SETTINGS = {"model": TINY_MODEL, "trainer": {"max_epochs": 2, "batch_size": 64}}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """What a kernel that is none was asked to display, and to put in its place."""
    found: list[Shown] = []

    def display(what: Shown, *, display_id: bool) -> Any:
        assert display_id
        found.append(what)
        return SimpleNamespace(update=found.append)

    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr(notebook, "SECONDS_BETWEEN_NUMBERS", 0.0)
    return found


def test_a_notebook_shows_a_bar_and_prints_a_line_per_epoch(
    prepared: Path, tmp_path: Path, shown: list[Shown], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_notebook()
    recsys_moe.fit(prepared, tmp_path / "run", SETTINGS)
    texts = [repr(one) for one in shown]
    steps = [re.match(r"epoch (\d)/2 step (\d+)/25 loss ", text) for text in texts[1:-1]]
    assert [match and (int(match[1]), int(match[2])) for match in steps] == [
        (epoch, step) for epoch in (1, 2) for step in range(1, 26)
    ]
    assert texts[-1] == "trained for 2 epochs"
    assert '<progress value="25" max="25">' in shown[-2]._repr_html_()
    printed = capsys.readouterr().out.splitlines()
    assert [line[:14] for line in printed if " done in " in line] == [
        "epoch 1/2 done",
        "epoch 2/2 done",
    ]
    ours = logging.getLogger("recsys_moe")
    assert ours.propagate and not ours.isEnabledFor(logging.INFO)


def test_lines_go_where_a_notebook_has_sent_them(
    prepared: Path,
    tmp_path: Path,
    shown: list[Shown],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="recsys_moe"):
        recsys_moe.fit(prepared, tmp_path / "run", SETTINGS)
    assert "epoch 2/2 done" in caplog.text
    assert "done" not in capsys.readouterr().out


def test_markup_of_a_line_is_text_in_a_notebook() -> None:
    assert Shown("<b> & </b>", 1, 2)._repr_html_().endswith("&lt;b&gt; &amp; &lt;/b&gt;")


def test_outside_of_a_notebook_nothing_is_printed(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not in_notebook()
    recsys_moe.fit(prepared, tmp_path / "run", SETTINGS)
    assert capsys.readouterr() == ("", "")


def test_settings_are_sections_a_file_or_a_config(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "model: {embedding_dim: 8, num_experts: 4, expert_dim: 16, tower_dims: [8]}\n"
        "trainer: {max_epochs: 2, batch_size: 64}\n"
    )
    given: dict[str, Any] = {
        "sections": SETTINGS,
        "file": str(tmp_path / "config.yaml"),
        "config": parse_config(SETTINGS),
    }
    losses = {recsys_moe.fit(prepared, tmp_path / n, c)["loss"] for n, c in given.items()}
    assert len(losses) == 1


def test_the_former_order_of_arguments_still_trains(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = recsys_moe.fit(prepared, tmp_path / "new", SETTINGS)
    assert "is now" not in caplog.text
    assert recsys_moe.fit(SETTINGS, prepared, tmp_path / "old")["loss"] == new["loss"]
    assert "fit(config, data, out) is now fit(data, out, config)" in caplog.text


@pytest.mark.parametrize(
    ("data", "config", "said"),
    [
        (pd.DataFrame({"user": [1]}), None, "prepared folder, got a DataFrame; call recsys_moe.pr"),
        (7, None, "data must be the path of a folder, got int"),
        ("data", 7, "config must be sections of settings, .*got int"),
        ("data", "quickstrat", "quickstrat: no such file.*did you mean 'quickstart'"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    data: Any, config: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        recsys_moe.fit(data, tmp_path / "run", config)


def test_errors_name_arguments_and_not_options_of_the_command(
    prepared: Path, tmp_path: Path
) -> None:
    recsys_moe.fit(prepared, run := tmp_path / "run", SETTINGS)
    there = re.escape(f'out {run} exists; choose another folder, continue it with resume="auto", ')
    with pytest.raises(ConfigError, match=f"^{there}or replace it with overwrite=True$"):
        recsys_moe.fit(prepared, run, SETTINGS)
    with pytest.raises(ConfigError, match=r"^resume none\.ckpt: there is no checkpoint"):
        recsys_moe.fit(prepared, run, SETTINGS, resume="none.ckpt")
    started: dict[str, Any] = {"init_from": run, "resume": "auto"}
    with pytest.raises(ConfigError, match=r"^init_from .* and resume=\"auto\" continues one"):
        recsys_moe.fit(prepared, run, SETTINGS, **started)
