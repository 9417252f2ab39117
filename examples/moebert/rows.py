"""Rows of texts and labels, and their batches. Axes: B batch, L positions, T labels of a
text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.moebert.encoder import Text


@dataclass(frozen=True)
class Rows:
    """Texts of one length, filled up, with a class each, or the ends of an answer."""

    text: Text
    labels_BT: Tensor

    def __len__(self) -> int:
        return len(self.labels_BT)

    def take(self, index: Tensor) -> tuple[Text, Tensor]:
        """Rows, as long as the longest of them."""
        mask_BL = self.text.mask_BL[index]
        longest = int(mask_BL.sum(1).max())
        ids_BL, types_BL = (part[index, :longest] for part in self.text[:2])
        return Text(ids_BL, types_BL, mask_BL[:, :longest]), self.labels_BT[index]

    def to(self, device: torch.device) -> Rows:
        return Rows(Text(*(part.to(device) for part in self.text)), self.labels_BT.to(device))


def rows_of(text: Text, labels: Sequence[int]) -> Rows:
    """Of a class each."""
    return Rows(text, torch.tensor(labels)[:, None])


@dataclass(frozen=True)
class Splits:
    """What is trained on, chosen by, and reported; they may be the same where the task has two."""

    train: Rows
    val: Rows
    test: Rows
    classes: int


class Batches:
    """All rows in batches; with a seed in an order of its own, the same each time."""

    def __init__(self, rows: Rows, size: int, seed: Sequence[int] | None = None) -> None:
        self.rows, self.size, self.seed = rows, size, seed

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __iter__(self) -> Iterator[tuple[Text, Tensor]]:
        order = torch.arange(len(self.rows))
        if self.seed is not None:
            run, epoch = self.seed
            generator = torch.Generator().manual_seed(run * 10**6 + epoch)
            order = torch.randperm(len(self.rows), generator=generator)
        for index in order.to(self.rows.labels_BT.device).split(self.size):
            yield self.rows.take(index)
