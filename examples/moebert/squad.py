"""SQuAD's official files: train-v1.1.json and dev-v1.1.json, or both of v2.0.

A simplification, said so in research/examples.md: a text is question and context cut to 384
tokens, no sliding windows; questions whose answer was cut away, or that have none, point at [CLS];
F1 is that of the two spans of tokens against the first answer given, not of their normalised
words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.moebert.encoder import Text
from examples.moebert.rows import Rows, Splits
from examples.moebert.words import Words
from recsys_moe.errors import DataError

LENGTH = 384


def load(folder: Path, words: Words | None) -> tuple[Splits, Words]:
    """Raises DataError."""
    if words is None:
        raise DataError("--task squad must have the vocabulary of a checkpoint, got none")
    for version in ("v1.1", "v2.0"):
        paths = [folder / f"{split}-{version}.json" for split in ("train", "dev")]
        if all(path.exists() for path in paths):
            train, dev = (
                rows(json.loads(path.read_text(encoding="utf-8")), words) for path in paths
            )
            return Splits(train, dev, dev, 0), words
    raise DataError(f"{folder} has no train-v1.1.json and dev-v1.1.json, nor both of v2.0")


def rows(content: Any, words: Words) -> Rows:
    """Of a file's content; labels are the first and last token of the answer."""
    texts, ends = [], []
    for question, context, start, stop in _answers(content):
        before = len(words.tokens(question)) + 2  # [CLS] and [SEP]
        first = before + len(words.tokens(context[:start]))
        last = before + len(words.tokens(context[:stop])) - 1
        is_there = stop > start and last < LENGTH - 1
        texts.append((question, context))
        ends.append([first, last] if is_there else [0, 0])
    ids, types, mask = words.encode(texts, LENGTH)
    return Rows(Text(ids, types, mask), torch.tensor(ends).reshape(-1, 2))


def _answers(content: Any) -> Iterator[tuple[str, str, int, int]]:
    """Question, context, and where in it the first answer begins and ends; 0, 0 without one."""
    for paragraph in (p for article in content["data"] for p in article["paragraphs"]):
        for asked in paragraph["qas"]:
            answer: Any = next(iter(asked["answers"]), {"text": "", "answer_start": 0})
            start = answer["answer_start"]
            yield asked["question"], paragraph["context"], start, start + len(answer["text"])


def overlap(guess_B2: Tensor, true_B2: Tensor) -> Tensor:
    """F1 of two spans of tokens, both ends included, (B,)."""
    first_B = torch.maximum(guess_B2[:, 0], true_B2[:, 0])
    last_B = torch.minimum(guess_B2[:, 1], true_B2[:, 1])
    both_B = (last_B - first_B + 1).clamp(min=0)
    sizes = [(span[:, 1] - span[:, 0] + 1).clamp(min=0) for span in (guess_B2, true_B2)]
    return 2 * both_B / (sizes[0] + sizes[1]).clamp(min=1)
