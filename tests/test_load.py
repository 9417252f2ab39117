"""The load test runs on a real server, with sizes that measure nothing, and its targets are met."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = (
    *("--minutes=0.1", "--reload=2", "--peak-seconds=0.5", "--clients=4", "--share=0.2"),
    *("--bad=0.3", "--growth=2", "--seed=1"),
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other by short names, which must not stay behind."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    yield
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
def test_its_targets_are_met_and_its_last_line_says_what_was_measured(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        importlib.import_module("soak").main([str(run), *TINY])
    found = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert (end.value.code, found["benchmark"]) == (0, "soak")
    assert all(target["met"] for target in found["targets"])
    assert (found["errors"], found["wrongly"], found["reloads_refused"]) == (0, 0, 0)
    assert found["reloads"] > 0 < found["bad"]


def test_every_bad_request_has_a_status_that_the_documentation_lists() -> None:
    wire = importlib.import_module("wire")
    text = (BENCHMARKS.parent / "docs/reference/http.md").read_text(encoding="utf-8")
    text = text.partition("## Status codes")[2]
    statuses = {ask.status for ask in wire.BAD.values()}
    assert {400, 401, 404, 405, 413, 415, 421, 422} == statuses
    assert all(f"| {status}" in text or f", {status} |" in text for status in statuses)


def test_the_same_seed_mixes_the_same_requests() -> None:
    mixed = importlib.import_module("wire").mixed
    first, again, other = mixed(0.1, 1), mixed(0.1, 1), mixed(0.1, 2)
    asked = [first(number) for number in range(1000)]
    assert asked == [again(number) for number in range(1000)]
    assert asked != [other(number) for number in range(1000)]
    assert 60 < sum(ask.status != 200 for ask in asked) < 140  # 100 and four deviations of 9.5


def test_what_is_wrong_misses_a_target() -> None:
    soak = importlib.import_module("soak")
    calm = {"errors": 0, "wrongly": 0, "reloads_refused": 0, "growth": 1.01, "more_handles": 1}
    grown = calm | {"errors": 1, "growth": 1.06, "more_handles": 3}
    for found, met in ((calm, [True] * 5), (grown, [False, True, True, False, False])):
        assert [target["met"] for target in soak.targets(found, 1.05)] == met
    watched = [(100.0, 9)] * 2 + [(110.0, 9)] * 2 + [(121.0, 12)] * 6  # warm: the second fifth
    assert soak.growth(watched) == {"mb": 121, "growth": pytest.approx(1.1), "more_handles": 3}
