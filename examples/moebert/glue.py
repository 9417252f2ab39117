"""GLUE's official files: a folder with train.tsv and dev.tsv of one task.

The dev set is validation and test at once, as in the papers; MNLI tests on the mismatched one.
Classes are in the order of Hugging Face's `glue`, which fine-tuned checkpoints mostly follow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from examples.moebert.rows import Rows, Splits, rows_of
from examples.moebert.words import Words
from recsys_moe.errors import DataError

LENGTH = 128
ENTAILMENT = ("entailment", "not_entailment")


class Columns(NamedTuple):
    """Where a line of a task has its text and its class."""

    text: tuple[str, ...]
    """One or two columns."""
    label: str
    labels: tuple[str, ...] = ("0", "1")
    heading: tuple[str, ...] = ()
    """Of files without a line of names."""


COLUMNS = {
    "cola": Columns(("sentence",), "label", heading=("source", "label", "mark", "sentence")),
    "sst2": Columns(("sentence",), "label"),
    "mrpc": Columns(("#1 String", "#2 String"), "Quality"),
    "qqp": Columns(("question1", "question2"), "is_duplicate"),
    "qnli": Columns(("question", "sentence"), "label", ENTAILMENT),
    "rte": Columns(("sentence1", "sentence2"), "label", ENTAILMENT),
    "mnli": Columns(
        ("sentence1", "sentence2"), "gold_label", ("entailment", "neutral", "contradiction")
    ),
}


def loader(name: str) -> Callable[[Path, Words | None], tuple[Splits, Words]]:
    """Of the task `name`, for a folder and the words of a checkpoint."""

    def load(folder: Path, words: Words | None) -> tuple[Splits, Words]:
        if words is None:
            raise DataError(f"--task {name} must have the vocabulary of a checkpoint, got none")
        files = ("dev_matched.tsv", "dev_mismatched.tsv") if name == "mnli" else ["dev.tsv"] * 2
        train, val, test = (_read(folder / file, name, words) for file in ("train.tsv", *files))
        return Splits(train, val, test, len(COLUMNS[name].labels)), words

    return load


def _read(path: Path, name: str, words: Words) -> Rows:
    columns = COLUMNS[name]
    if not path.exists():
        raise DataError(f"{path.parent} has no {path.name}; give the folder of GLUE's {name}")
    lines = path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    heading = list(columns.heading) or lines.pop(0).rstrip("\r").split("\t")
    wanted = (*columns.text, columns.label)
    if missing := [column for column in wanted if column not in heading]:
        raise DataError(f"{path} must have a column {missing[0]}, got {', '.join(heading)}")
    places = [heading.index(column) for column in wanted]
    texts, labels = [], []
    for number, line in enumerate(lines, 1):
        parts = line.rstrip("\r").split("\t")
        if len(parts) <= max(places) or parts[places[-1]] not in columns.labels:
            raise DataError(
                f"{path}: row {number} must have a {columns.label} of {', '.join(columns.labels)}, "
                f"got {line[:60]!r}"
            )
        text = [parts[place] for place in places[:-1]]
        texts.append((text[0], text[1] if len(text) == 2 else None))
        labels.append(columns.labels.index(parts[places[-1]]))
    return rows_of(words.encode(texts, LENGTH), labels)
