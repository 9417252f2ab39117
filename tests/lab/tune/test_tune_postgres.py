"""A study in a real PostgreSQL: set RECSYS_MOE_POSTGRES=postgresql+psycopg://USER@HOST/DATABASE."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from recsys_moe.lab.tune.run import tune
from tests.lab.tune.tune_pretend import ASKED, Pretend, trials

URL = os.environ.get("RECSYS_MOE_POSTGRES")
pytestmark = pytest.mark.skipif(not URL, reason="needs a database: set RECSYS_MOE_POSTGRES")


def test_studies_share_a_server_and_continue_there(prepared: Path, tmp_path: Path) -> None:
    asked = replace(ASKED, storage=URL, trials=2)
    for name in ("a", "b"):
        tune(asked, prepared, tmp_path / name, executor=Pretend())
        assert len(trials(tmp_path / name)) == 2
    again = Pretend()
    tune(replace(asked, trials=3), prepared, tmp_path / "a", executor=again)
    assert again.ran == ["fit 0002"]
    assert (len(trials(tmp_path / "a")), len(trials(tmp_path / "b"))) == (3, 2)
    assert not (tmp_path / "a" / "study.db").exists()
