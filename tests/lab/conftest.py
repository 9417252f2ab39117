"""What the tests of the lab share: one comparison that really trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.lab.compare.run import compare
from tests.lab.in_process import ASKED, InProcess


@pytest.fixture(scope="session")
def comparison(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of moesart and topk, two seeds. Read only."""
    out = tmp_path_factory.mktemp("compare") / "out"
    assert compare(ASKED, prepared, out, executor=InProcess()).failures == []
    return out
