"""The official files of MNIST, FashionMNIST and SVHN: read, checked, never downloaded.

Images come as uint8 (N, channels, side, side), labels as int64 (N,), 0..9.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys_moe.errors import DataError

Bytes = npt.NDArray[np.uint8]

IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MAGIC = {1: 0x801, 3: 0x803}
"""First four bytes of an idx file of bytes, by its number of axes."""
SVHN = {"train": "train_32x32.mat", "extra": "extra_32x32.mat", "test": "test_32x32.mat"}
MNIST_HOME = "http://yann.lecun.com/exdb/mnist"
FASHION_HOME = "https://github.com/zalandoresearch/fashion-mnist"
SVHN_HOME = "http://ufldl.stanford.edu/housenumbers (format 2, cropped digits)"
DIGITS = 10
MNIST_SIDE, SVHN_SIDE = 28, 32


class Images(NamedTuple):
    """Images and the label of each."""

    pixels: Tensor
    """uint8 (N, channels, side, side)."""
    labels: Tensor
    """int64 (N,), 0..9."""


def read_mnist(folder: Path, part: str, home: str = MNIST_HOME) -> Images:
    """`part` train or test of a folder in MNIST's layout, gzipped or not. Raises DataError."""
    paths = [find(folder, [f"{name}.gz", name], home) for name in IDX[part]]
    pixels, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if pixels.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
        raise DataError(f"{paths[0]}: images must be 28 x 28, got {pixels.shape[1:]}; see {home}")
    return _checked(pixels[:, None], labels, paths[0], paths[1])


def read_svhn(folder: Path, part: str) -> Images:
    """`part` train, extra or test of the cropped digits of SVHN. Raises DataError.

    The files are MATLAB's: X (32, 32, 3, N) bytes, y (N, 1) with 10 for the digit 0.
    """
    from scipy.io import loadmat

    path = find(folder, [SVHN[part]], SVHN_HOME)
    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].reshape(-1)
    except Exception as error:  # whatever a damaged file makes scipy raise
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a file of SVHN's cropped digits ({reason})") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: X must be (32, 32, 3, N) bytes, got {pixels.shape}")
    if labels.size and not 1 <= labels.min() <= labels.max() <= DIGITS:
        raise DataError(f"{path}: y must be in 1..10, got {labels.min()}..{labels.max()}")
    return _checked(pixels.transpose(3, 2, 0, 1), (labels % DIGITS).astype(np.uint8), path, path)


def read_idx(path: Path, axes: int) -> Bytes:
    """The array in an idx file of bytes: magic number, one big-endian size per axis, the bytes.

    Raises DataError where the magic number, or the length that the sizes promise, is another.
    """
    content = _content(path)
    magic, start = int.from_bytes(content[:4], "big"), 4 + 4 * axes
    if magic != MAGIC[axes] or len(content) < start:
        raise DataError(
            f"{path}: the file must begin with the magic number {MAGIC[axes]:#010x} and {axes} "
            f"sizes, got {content[:4].hex() or 'nothing'}; take the official file"
        )
    sizes = [int.from_bytes(content[4 * n : 4 * n + 4], "big") for n in range(1, axes + 1)]
    if len(content) - start != int(np.prod(sizes)):
        shape = " x ".join(map(str, sizes))
        raise DataError(
            f"{path}: {shape} bytes must follow the sizes, got {len(content) - start}; "
            "the file is cut off or damaged, take it anew"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def find(folder: Path, names: list[str], home: str) -> Path:
    """The first of `names` in `folder`. Raises DataError with where the official files are."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{folder} has no {' or '.join(names)}; this command downloads nothing, "
        f"the official files are at {home}"
    )


def _content(path: Path) -> bytes:
    """The bytes of a file, unzipped where it is called so."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); download it again") from None


def _checked(pixels: Bytes, labels: Bytes, *paths: Path) -> Images:
    """As tensors. Raises DataError for counts that differ, none at all, or labels above 9."""
    if not 0 < len(pixels) == len(labels):
        raise DataError(f"{paths[0]} has {len(pixels)} images, {paths[1]} {len(labels)} labels")
    if labels.max() >= DIGITS:
        raise DataError(f"{paths[1]}: labels must be in 0..9, got {labels.max()}")
    own = torch.from_numpy(np.array(pixels, order="C"))  # a copy: the file's bytes are read-only
    return Images(own, torch.from_numpy(labels.astype(np.int64)))
