"""Multi-MNIST, Multi-FashionMNIST and SVHN as rows of batches.

Two images lie over each other on a canvas of 36 x 36, one at the top left and one at the bottom
right; the tasks name them. Composites are put together batch by batch, so the table of a split is
its images once and two indices per row.

Axes: N images, R rows, B rows of a batch, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from examples.images.files import FASHION_HOME, MNIST_HOME, Images, read_mnist, read_svhn
from recsys_moe.errors import DataError

SHIFT = 8
"""Rows and columns between the two places; the canvas is that much larger than an image."""
COPIES = 2
"""Composites per image at the top left."""
SVHN_VALIDATION = 50_000
"""Images of SVHN's `extra` that validation takes."""
Draw = np.random.RandomState
"""Its streams are the same in all versions of numpy, so the composites are."""


@dataclass(frozen=True)
class Rows:
    """A split: each row is an image, or two of them over each other."""

    images: Images
    index_RT: Tensor
    """int64 (R, 1 or 2): the image at the top left, the one at the bottom right."""
    tasks: int
    """How many of them are to be named, from the first on."""

    def __len__(self) -> int:
        return len(self.index_RT)

    @property
    def shape(self) -> tuple[int, int]:
        """Channels, and the side of a row's image in pixels."""
        _, channels, side, _ = self.images.pixels.shape
        return channels, side + SHIFT * (self.index_RT.shape[1] - 1)

    def take(self, row_B: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 (B, channels, side, side), and labels int64 (B, T).

        Overlaps are added and not clipped, so values are in [0, 2].
        """
        index_BT = self.index_RT[row_B]
        pixels = [self.images.pixels[index_B] for index_B in index_BT.unbind(1)]
        labels_BT = self.images.labels[index_BT[:, : self.tasks]]
        return overlay(pixels), labels_BT

    def to(self, device: torch.device) -> Rows:
        """The same on a device."""
        images = Images(*(tensor.to(device) for tensor in self.images))
        return replace(self, images=images, index_RT=self.index_RT.to(device))


@dataclass(frozen=True)
class Splits:
    """What a study trains on, chooses its epoch on, and reports."""

    train: Rows
    val: Rows
    test: Rows


class Batches:
    """A split in batches on a device: shuffled by `seed`, or in its order without one."""

    def __init__(self, rows: Rows, size: int, seed: Sequence[int] | None = None) -> None:
        self.rows, self.size, self.seed = rows, size, seed

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order_R = torch.arange(len(self.rows))
        if self.seed is not None:
            order_R = torch.from_numpy(Draw(self.seed).permutation(len(self.rows)))
        for row_B in order_R.to(self.rows.index_RT.device).split(self.size):
            yield self.rows.take(row_B)


def overlay(pixels: list[Tensor]) -> Tensor:
    """uint8 images (B, channels, side, side), one or two -> float32, over each other, over 255."""
    if len(pixels) == 1:
        return pixels[0].float() / 255
    num_rows, channels, side, _ = pixels[0].shape
    canvas = torch.zeros(num_rows, channels, side + SHIFT, side + SHIFT, device=pixels[0].device)
    canvas[:, :, :side, :side] += pixels[0]
    canvas[:, :, SHIFT:, SHIFT:] += pixels[1]
    return canvas / 255


def multi_mnist(folder: Path, tasks: int = 2, home: str = MNIST_HOME) -> Splits:
    """Composites of each split's own images: 100,000, 20,000 and 20,000 rows of the real files.

    One image in six of the training file validates, stratified by label. Raises DataError.
    """
    train, test = read_mnist(folder, "train", home), read_mnist(folder, "test", home)
    kept, held = stratified(train.labels.numpy(), one_in=6)
    parts = [Images(*(t[torch.from_numpy(own)] for t in train)) for own in (kept, held)]
    splits = [
        Rows(images, torch.from_numpy(pairs(len(images.labels), Draw([0, number]))), tasks)
        for number, images in enumerate([*parts, test])
    ]
    return Splits(*splits)


def multi_fashion(folder: Path, tasks: int = 2) -> Splits:
    """The same of FashionMNIST, whose files have the names of MNIST's. Raises DataError."""
    return multi_mnist(folder, tasks, FASHION_HOME)


def svhn(folder: Path, tasks: int = 1) -> Splits:
    """One image per row and one task; validation is 50,000 images of `extra`. Raises DataError."""
    if tasks != 1:
        raise DataError(f"svhn has 1 task, got {tasks}; leave it out")
    read = {part: read_svhn(folder, part) for part in ("train", "extra", "test")}
    extra = len(read["extra"].labels)
    own = torch.from_numpy(Draw(0).permutation(extra)[:SVHN_VALIDATION])
    read["extra"] = Images(*(tensor[own] for tensor in read["extra"]))
    rows = [Rows(i, torch.arange(len(i.labels))[:, None], 1) for i in read.values()]
    return Splits(*rows)


def stratified(labels: np.ndarray, one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the images kept and of those held out, each label in proportion, in their order.

    `len(labels) // one_in` are held out: of the labels with the largest remainders one more.
    """
    classes, counts = np.unique(labels, return_counts=True)
    share = counts / one_in
    take = np.floor(share).astype(int)
    missing = len(labels) // one_in - take.sum()
    take[np.argsort(take - share, kind="stable")[:missing]] += 1
    draw = Draw(0)
    own = [
        draw.permutation(np.flatnonzero(labels == c))[:n]
        for c, n in zip(classes, take, strict=True)
    ]
    held = np.zeros(len(labels), dtype=bool)
    held[np.concatenate(own)] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def pairs(count: int, draw: Draw) -> np.ndarray:
    """(2 N, 2): each image twice at the top left, with a drawn image at the other place.

    As in the published code, the draw is uniform over the other images but the last of them, and
    both draws of an image may be the same.
    """
    if count < 3:
        raise DataError(f"a split needs at least 3 images to make composites of, got {count}")
    first = np.repeat(np.arange(count), COPIES)
    partner = draw.randint(0, count - 2, size=len(first))
    return np.stack([first, partner + (partner >= first)], 1)
