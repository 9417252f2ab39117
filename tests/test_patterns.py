"""No regular expression of ours takes longer than its text is long, whatever a stranger writes."""

from __future__ import annotations

import ast
import itertools
import re
import time
from pathlib import Path

import pytest

from data_prep import prepare
from data_prep.features import spec
from data_prep.split import splits
from recsys_moe import cells, raw_ids
from recsys_moe.cli import training
from recsys_moe.inference.cold_start import features as feature_values
from recsys_moe.inference.evaluation import ranking_wanted
from recsys_moe.inference.ranking import item_filters
from recsys_moe.lab.compare import epochs
from recsys_moe.lab.jobs import ray_cluster
from recsys_moe.lab.tune import run as tune_run
from recsys_moe.serve import http

ROOT = Path(__file__).parents[1]
LONG = 100_000
SECONDS = 1.0
TASK = r"([A-Za-z][A-Za-z0-9_]*):([a-z]+)(?:=(.+))?"
OUTSIDE: dict[str, tuple[str, re.Pattern[str] | re.Pattern[bytes] | str]] = {
    "serve/http.py: NAME": ("fullmatch", http.NAME),
    "inference/ranking/item_filters.py: CONDITION": ("fullmatch", item_filters.CONDITION),
    "inference/evaluation/ranking_wanted.py: LEAST": ("fullmatch", ranking_wanted.LEAST),
    "inference/cold_start/features.py: NUMBER": ("fullmatch", feature_values.NUMBER),
    "raw_ids.py: POINTED": ("fullmatch", raw_ids.POINTED),
    "raw_ids.py: INT64": ("fullmatch", raw_ids.INT64),
    "lab/jobs/ray_cluster.py: ADDRESS": ("fullmatch", ray_cluster.ADDRESS),
    "lab/compare/epochs.py: LINE": ("match", epochs.LINE),
    "lab/tune/run.py: NOT_FINITE": ("search", tune_run.NOT_FINITE),
    "lab/report/findings.py: '[^A-Za-z0-9_]'": ("search", "[^A-Za-z0-9_]"),
    "lab/compare/plan.py: '[^A-Za-z0-9._+]+'": ("search", "[^A-Za-z0-9._+]+"),
    "cli/training.py: NO_MEMORY": ("search", training.NO_MEMORY),
    "features/spec.py: _SPEC": ("fullmatch", spec._SPEC),
    "prepare.py: FLAG": ("search", prepare.FLAG),
    "split/splits.py: SHARE": ("fullmatch", splits.SHARE),
    "cells.py: _DAY_FIRST": ("fullmatch", cells._DAY_FIRST),
    f"table/spec.py: {TASK!r}": ("fullmatch", TASK),
}
"""Where a pattern stands, and how it meets text from outside."""
OURS = {"machine.py", "lab/report/plots.py", "folders.py", "files.py"}
"""Whose patterns only see what the kernel or our own plots write, or the names of files."""
NAMED = ("re.compile", "re.escape")
UNITS = [
    " ",
    "\n",
    "a",
    "1",
    ".",
    "-",
    "=",
    ":",
    "[",
    "<",
    ">=",
    "a ",
    "1.",
    "1e",
    ".0",
    "a=",
    "a:",
]
UNITS += [":sep=", "='", "epoch 1/", "error: loss became ", "out of memor"]
TEXTS = [
    (before, unit, after)
    for before, unit, after in itertools.product(
        ["", "a", "1", ".", "a:b=", "error: "], UNITS, ["", "x", "\n", "!"]
    )
]


def patterns_of(package: str) -> set[str]:
    """`FILE: PATTERN` of each call of `re`; what a compiled one is called is its name."""
    found = set()
    for path in sorted((ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT / package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Assign) else node
            if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
                continue
            what = ast.unparse(value.func)
            if what == "re.compile" and value is not node:  # met again without its name
                found.add(f"{file}: {ast.unparse(node.targets[0])}")
            elif what.startswith("re.") and what.count(".") == 1 and what not in NAMED:
                found.add(f"{file}: {ast.unparse(value.args[0])}")
    return found


def test_every_pattern_is_tried_here_or_sees_no_text_from_outside() -> None:
    """Those of pyarrow are of RE2, whose time is linear; here are those of `re`."""
    found = patterns_of("recsys_moe") | patterns_of("data_prep")
    assert {one for one in found if one.split(": ")[0] not in OURS} == {*OUTSIDE}


@pytest.mark.parametrize("where", OUTSIDE)
def test_a_hundred_thousand_characters_are_matched_within_a_second(where: str) -> None:
    how, pattern = OUTSIDE[where]
    compiled = re.compile(pattern)
    match = getattr(compiled, how)
    for length, (before, unit, after) in itertools.product([LONG // 20, LONG], TEXTS):
        text = before + unit * (length // len(unit)) + after
        of_bytes = isinstance(compiled.pattern, bytes)
        start = time.process_time()
        match(text.encode() if of_bytes else text)
        assert time.process_time() - start < SECONDS * length / LONG, (length, before, unit, after)
