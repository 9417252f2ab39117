"""Names of metrics as people read them, on the page and in print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import recsys_moe
from recsys_moe.kinds import KINDS, metric_title


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("auc", "AUC"),
        ("ece_calibrated", "ECE calibrated"),
        ("d2", "D2"),
        ("log_loss", "log loss"),
        ("macro_auc", "macro AUC"),
        ("accuracy", "accuracy"),
    ],
)
def test_only_abbreviations_are_in_capitals(metric: str, title: str) -> None:
    assert metric_title(metric) == title


def test_the_page_says_what_every_metric_of_every_kind_means() -> None:
    parts = Path(recsys_moe.__file__).parent / "serve" / "static" / "parts.js"
    (meanings,) = re.findall(r"const MEANINGS = \{(.*?)\};", parts.read_text("utf-8"), re.DOTALL)
    told = set(re.findall(r"^  (\w+):", meanings, re.MULTILINE))
    assert told == {metric for kind in KINDS.values() for metric in kind.metrics}
