"""Texts as token ids: WordPiece as in BERT, over a vocab.txt that exists or is made here."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from examples.moebert.encoder import Text
from recsys_moe.errors import DataError

PAD, UNKNOWN, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST, START, INNER = 100, 6, 4
"""Letters of a word, more of which are unknown; of pieces that are made, at a word's start and
inside."""


class Words:
    """A vocabulary, a piece per line of vocab.txt, and what it makes of a text."""

    def __init__(self, pieces: Sequence[str], *, lower: bool = True) -> None:
        """`lower`: letters are made small and lose their accents. Raises DataError."""
        self.pieces, self.lower = list(pieces), lower
        self.index = {piece: index for index, piece in enumerate(self.pieces)}
        if missing := [name for name in (PAD, UNKNOWN, CLS, SEP) if name not in self.index]:
            raise DataError(f"vocab.txt must have a line {missing[0]}, got none; is it BERT's?")

    @classmethod
    def load(cls, path: Path, *, lower: bool = True) -> Words:
        return cls(path.read_text(encoding="utf-8").splitlines(), lower=lower)

    def tokens(self, text: str) -> list[str]:
        return [piece for word in split(text, self.lower) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[str]:
        """The longest piece that fits, then the longest of what is left."""
        found: list[str] = []
        start = 0
        while start < len(word) <= LONGEST:
            before = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if before + word[start:e] in self.index), None)
            if end is None:
                return [UNKNOWN]
            found.append(before + word[start:end])
            start = end
        return found or [UNKNOWN]

    def encode(self, texts: Sequence[tuple[str, str | None]], length: int) -> Text:
        """Texts, each of one sentence or two, cut to `length` tokens and filled up to it."""
        ids = torch.full((len(texts), length), self.index[PAD])
        types = torch.zeros_like(ids)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for row, (first, second) in enumerate(texts):
            one = self.tokens(first)
            two = [] if second is None else [*self.tokens(second), SEP]
            while len(one) + len(two) > length - 2:  # the longer one loses its end
                longer = one if len(one) >= len(two) else two
                longer.pop(-1 if longer is one else -2)
            words = [CLS, *one, SEP, *two]
            ids[row, : len(words)] = torch.tensor([self.index[word] for word in words])
            types[row, len(one) + 2 : len(words)] = 1
            mask[row, : len(words)] = True
        return Text(ids, types, mask)


def split(text: str, lower: bool = True) -> list[str]:
    """Words and signs, as BERT's basic tokenizer without Chinese."""
    if lower:
        parts = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in parts if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if _is_sign(c) else c for c in text).split()


def _is_sign(letter: str) -> bool:
    is_plain = 33 <= ord(letter) <= 126 and not letter.isalnum()
    return is_plain or unicodedata.category(letter).startswith("P")


def made_from(texts: Iterable[str], least: int) -> Words:
    """A vocabulary of small pieces: all letters, and starts and insides of words that come at least
    `least` times; whole words too."""
    counts: Counter[str] = Counter()
    letters: set[str] = set()
    for word in (word for text in texts for word in split(text)):
        letters |= {letter for c in word for letter in (c, f"##{c}")}
        counts[word] += 1
        counts.update(word[:end] for end in range(2, min(START + 1, len(word))))
        for start in range(1, len(word)):
            ends = range(start + 2, min(start + INNER, len(word)) + 1)
            counts.update(f"##{word[start:end]}" for end in ends)
    often = {piece for piece, count in counts.items() if count >= least}
    return Words([PAD, UNKNOWN, CLS, SEP, *sorted(letters | often)])
