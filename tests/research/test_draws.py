"""research/draws.py takes the runs of one label; its arithmetic is in test_benchmarks.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research import draws
from tests.conftest import tells


def runs(path: Path, *losses: float, label: str = "best") -> str:
    rows = "".join(f"{label},{loss}\n" for loss in losses)
    path.write_text((path.read_text() if path.is_file() else "label,loss\n") + rows)
    return str(path)


def test_seeds_of_a_draw_are_one_mean_and_other_labels_are_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = runs(tmp_path / "a.csv", 4.0, 6.0)
    runs(tmp_path / "a.csv", 99.0, label="other")
    others = [runs(tmp_path / f"{loss}.csv", loss) for loss in (1.0, 3.0)]
    draws.main([chosen, *others, "--label", "best"])
    [row] = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["figure"], row["chosen"], row["others"]) == ("loss", 5.0, 2.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a.csv ... got ['best', 'other'] ... --label"),
        (["--label", "none"], "a.csv, ['best', 'other'], got 'none'"),
    ],
)
def test_runs_of_several_labels_are_told_apart_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    chosen = runs(tmp_path / "a.csv", 4.0)
    runs(tmp_path / "a.csv", 5.0, label="other")
    with pytest.raises(SystemExit, match="2"):
        draws.main([chosen, chosen, chosen, *words])
    assert tells(capsys.readouterr().err, said)
