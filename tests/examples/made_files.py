"""Small files in the official layouts of MNIST, FashionMNIST and SVHN."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import savemat

Bytes = npt.NDArray[np.uint8]


def idx(values: Bytes) -> bytes:
    """The idx file of an array of bytes: 0, 0, type 8, number of axes, sizes, bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def digits(count: int, shape: tuple[int, ...], seed: int) -> tuple[Bytes, Bytes]:
    """Images whose label is a bright row of pixels, so that there is something to learn."""
    draw = np.random.RandomState(seed)
    labels = np.arange(count, dtype=np.uint8) % 10
    pixels = draw.randint(0, 60, size=(count, *shape)).astype(np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[4 + 2 * label : 6 + 2 * label] = 255
    return pixels, labels


def mnist_folder(folder: Path, train: int = 120, test: int = 40, *, zipped: bool = True) -> Path:
    """MNIST's four files, as MNIST ships them or unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": train, "t10k": test}.items()):
        pixels, labels = digits(count, (28, 28), seed)
        for name, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
    return folder


def svhn_folder(folder: Path, train: int = 60, extra: int = 50, test: int = 30) -> Path:
    """SVHN's cropped digits: X (32, 32, 3, N), y (N, 1) with 10 for the digit 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": train, "extra": extra, "test": test}.items()):
        pixels, labels = digits(count, (32, 32, 3), seed)
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{part}_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": y})
    return folder
