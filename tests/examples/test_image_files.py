"""The official files of MNIST, FashionMNIST and SVHN are read whole or refused in words."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from examples.images.files import read_idx, read_mnist, read_svhn
from recsys_moe.errors import DataError
from tests.examples.made_files import digits, idx, mnist_folder, svhn_folder

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("zipped", [True, False])
def test_an_idx_file_is_read_as_it_was_written(tmp_path: Path, zipped: bool) -> None:
    read = read_mnist(mnist_folder(tmp_path, 20, 10, zipped=zipped), "train")
    pixels, labels = digits(20, (28, 28), seed=0)
    assert np.array_equal(read.pixels.numpy()[:, 0], pixels)
    assert read.labels.tolist() == labels.tolist()


def test_the_bytes_of_an_idx_file_are_those_of_its_description(tmp_path: Path) -> None:
    """Two images of 1 x 3: magic 0x00000803, then 2, 1 and 3 in four bytes, high first."""
    path = tmp_path / "two"
    path.write_bytes(bytes.fromhex("00000803 00000002 00000001 00000003") + bytes(range(6)))
    assert read_idx(path, 3).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]


def test_svhn_is_turned_to_rows_and_its_ten_is_the_digit_0(tmp_path: Path) -> None:
    read = read_svhn(svhn_folder(tmp_path), "extra")
    pixels, labels = digits(50, (32, 32, 3), seed=1)
    assert np.array_equal(read.pixels.permute(0, 2, 3, 1).numpy(), pixels)
    assert read.labels.tolist() == labels.tolist()


def zipped(content: bytes) -> bytes:
    """Without the time of day, which would be in the test's name: two workers must agree on it."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (IMAGES, zipped(b""), "magic .*got nothing"),
        (IMAGES, zipped(idx(digits(20, (28, 28), 0)[1])), "0x00000803 .*got 00000801"),
        (
            IMAGES,
            zipped(idx(digits(20, (28, 28), 0)[0])[:-1]),
            "20 x 28 x 28 bytes",
        ),
        (IMAGES, zipped(idx(digits(20, (14, 14), 0)[0])), r"must .*got \(14"),
        (IMAGES, zipped(idx(digits(20, (28, 28), 0)[0]))[:99], "ubyte.gz .*cannot be read"),
        (IMAGES, b"<html>", "ubyte.gz .*cannot be read"),
        (LABELS, zipped(idx(digits(19, (28, 28), 0)[1])), "has 20 images, .* 19 labels"),
        (LABELS, zipped(idx(np.full(20, 10, np.uint8))), "labels .*got 10"),
    ],
    ids=["empty", "labels", "short", "small", "cut gzip", "page", "fewer labels", "label 10"],
)
def test_a_file_that_is_not_mnists_is_refused(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    mnist_folder(tmp_path, 20, 10)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_mnist(tmp_path, "train")


def test_a_missing_file_is_named_with_its_home(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="no train-images-idx3-ubyte.gz or .* official files are at"
    ):
        read_mnist(tmp_path, "train")
    with pytest.raises(DataError, match="no extra_32x32.mat; .*housenumbers"):
        read_svhn(tmp_path, "extra")


def mat(path: Path, pixels: object, labels: object) -> None:
    savemat(path, {"X": pixels, "y": labels})


BLACK = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(b"<html>"), "is not a file of SVHN's cropped digits"),
        (
            lambda path: savemat(path, {"Z": BLACK}),
            "is not a file of SVHN.*KeyError",
        ),
        (lambda path: mat(path, BLACK[:16], [[1], [2]]), r"X .*\(32, 32, 3, N\) .*got"),
        (lambda path: mat(path, BLACK, [[0], [2]]), "y .*got 0..2"),
        (lambda path: mat(path, BLACK, [[1]]), "has 2 images, .* 1 labels"),
    ],
)
def test_a_file_that_is_not_svhns_is_refused(
    tmp_path: Path, write: Callable[[Path], object], said: str
) -> None:
    write(tmp_path / "test_32x32.mat")
    with pytest.raises(DataError, match=said):
        read_svhn(tmp_path, "test")
