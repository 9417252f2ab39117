"""The load tests run on a real server, with sizes that measure nothing, and their laws hold."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = {
    "soak": [
        *["--minutes=0.1", "--reload=2", "--peak-seconds=0.5", "--clients=4", "--share=0.2"],
        *["--bad=0.3", "--growth=2", "--seed=1"],
    ],
    "overload": [
        *["--seconds=2", "--peak-seconds=0.5", "--connections=300", "--times=3"],
        *["--bound=30000", "--recovery=30"],
    ],
    "connections": ["--idle=200", "--slow=10", "--seconds=2", "--timeout=1"],
}
FOUND = {
    "soak": {"errors": 0, "wrongly": 0, "reloads_refused": 0},
    "overload": {"times": 3.0},
    "connections": {"idle": 200, "timeout": 1.0},
}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other by short names, which must not stay behind."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    yield
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def result(script: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    importlib.import_module(script).main(words)
    return dict(json.loads(capsys.readouterr().out.strip().rpartition("\n")[2]))


@pytest.mark.slow
@pytest.mark.parametrize("script", TINY)
def test_its_laws_hold_and_its_last_line_says_what_was_measured(
    script: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result(script, [str(run), *TINY[script]], capsys)
    assert found["benchmark"] == script
    assert all(law["met"] for law in found["targets"])
    assert {key: found[key] for key in FOUND[script]} == FOUND[script]


def test_every_bad_request_has_a_status_that_the_documentation_lists() -> None:
    wire = importlib.import_module("wire")
    text = (BENCHMARKS.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = text.partition("## What is refused")[2].partition("## Who may ask")[0]
    statuses = {ask.status for ask in wire.BAD.values()}
    assert {400, 401, 404, 405, 413, 415, 421, 422} == statuses
    assert all(str(status) in rows for status in statuses)


def test_the_same_seed_mixes_the_same_requests() -> None:
    mixed = importlib.import_module("wire").mixed
    first, again, other = mixed(0.1, 1), mixed(0.1, 1), mixed(0.1, 2)
    asked = [first(number) for number in range(1000)]
    assert asked == [again(number) for number in range(1000)]
    assert asked != [other(number) for number in range(1000)]
    assert 60 < sum(ask.status != 200 for ask in asked) < 140  # 100 and four deviations of 9.5


def test_what_is_wrong_breaks_a_law() -> None:
    soak = importlib.import_module("soak")
    calm = {"warm": 100.0, "end": 101.0}
    found = {"errors": 1, "wrongly": 2, "reloads_refused": 0, "mb": calm, "handles": calm}
    assert [law["met"] for law in soak.laws(found, 1.05)] == [False, False, True, True, True]
    grown = {"warm": 100.0, "end": 106.0}
    found |= {"errors": 0, "wrongly": 0, "mb": grown, "handles": grown}
    assert [law["met"] for law in soak.laws(found, 1.05)] == [True, True, True, False, False]
