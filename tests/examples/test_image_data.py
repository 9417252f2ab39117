"""Composites and splits are those of the published description."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.images.data import (
    Batches,
    Draw,
    Rows,
    Splits,
    multi_fashion,
    multi_mnist,
    overlay,
    pairs,
    stratified,
    svhn,
)
from recsys_moe.errors import DataError
from tests.examples.made_files import mnist_folder, svhn_folder

GOLDEN_INDEX = [[0, 2993], [0, 828], [1, 4878]]
GOLDEN_LABELS = [[7, 7], [7, 2], [2, 2]]
GOLDEN_SUMS = [38098, 41236, 50095]
GOLDEN_SHA256 = "d9a0d82d131f460bb5e74efa4ba322929fb66ab783bf192f29f6d2072aa21908"
"""Of the three canvases, int16, put together from the raw file by a loop over places."""
GOLDEN_FIRST = {"train": [[0, 26602], [0, 5766]], "val": [[0, 3005], [0, 5383]]}
"""Of these splits."""
"""Of the first three composites of the real test file: images, digits, sums of their bytes."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    return multi_mnist(mnist_folder(tmp_path_factory.mktemp("mnist")))


def test_two_images_are_added_eight_pixels_apart_and_not_clipped() -> None:
    """255 + 255 where both are, over 255: 2. Top left alone on rows 0..7, the other on 28..35."""
    first, second = torch.zeros(2, 1, 1, 28, 28, dtype=torch.uint8)
    first[..., 8, 8] = second[..., 0, 0] = 255  # the same place of the canvas
    first[..., 0, 27] = 51
    second[..., 27, 27] = 102
    canvas = overlay([first, second])
    assert canvas.shape == (1, 1, 36, 36)
    found = {tuple(place): float(canvas[tuple(place)]) for place in canvas.nonzero().tolist()}
    expected = {(0, 0, 0, 27): 51 / 255, (0, 0, 8, 8): 2.0, (0, 0, 35, 35): 102 / 255}
    assert found == pytest.approx(expected)


def test_every_image_is_twice_at_the_top_left_and_never_with_itself() -> None:
    index_R2 = pairs(50, Draw(0))
    assert np.bincount(index_R2[:, 0]).tolist() == [2] * 50
    assert (index_R2[:, 0] != index_R2[:, 1]).all()


def test_partners_are_uniform_over_the_others_but_the_last() -> None:
    """Of 0..3, image 0 may have 1 or 2, image 3 may have 0 or 1: each half of the time."""
    drawn = np.concatenate([pairs(4, Draw(seed)) for seed in range(500)])
    for image, others in {0: [1, 2], 1: [0, 2], 2: [0, 1], 3: [0, 1]}.items():
        partners, counts = np.unique(drawn[drawn[:, 0] == image, 1], return_counts=True)
        assert partners.tolist() == others
        assert counts / counts.sum() == pytest.approx([0.5, 0.5], abs=0.06)  # 1000 draws: 4 sd


def test_a_sixth_of_each_label_validates() -> None:
    """7 of 0 and 11 of 1: 18 // 6 = 3 held out; 7/6 = 1.17 and 11/6 = 1.83 make 1 and 2."""
    labels = np.repeat([0, 1], [7, 11])
    kept, held = stratified(labels, one_in=6)
    assert np.bincount(labels[held]).tolist() == [1, 2]
    assert sorted([*kept, *held]) == list(range(18))


def test_splits_have_two_rows_per_image_and_share_none(made: Splits) -> None:
    """120 images: 100 and 20; 40 in the test file."""
    assert [len(rows) for rows in (made.train, made.val, made.test)] == [200, 40, 80]
    kept, held = ({p.numpy().tobytes() for p in s.images.pixels} for s in (made.train, made.val))
    assert len(kept) == 100 and len(held) == 20 and not kept & held
    assert made.train.shape == (1, 36)


def test_labels_are_those_of_the_two_places(made: Splits) -> None:
    image, labels_BT = made.train.take(torch.tensor([5]))
    first, second = made.train.index_RT[5]
    pixels, labels = made.train.images
    assert labels_BT.tolist() == [[int(labels[first]), int(labels[second])]]
    assert torch.equal(
        image[0, :, :8, :], torch.nn.functional.pad(pixels[first] / 255, (0, 8))[:, :8]
    )
    assert torch.equal(image[0, :, 28:, 8:], pixels[second][:, 20:] / 255)


def test_one_task_names_the_digit_at_the_top_left(tmp_path: Path) -> None:
    rows = multi_mnist(mnist_folder(tmp_path), tasks=1).train
    image, labels_BT = rows.take(torch.arange(3))
    assert image.shape == (3, 1, 36, 36)
    assert labels_BT[:, 0].tolist() == rows.images.labels[rows.index_RT[:3, 0]].tolist()


def test_the_same_files_make_the_same_rows_and_each_split_draws_its_own(tmp_path: Path) -> None:
    folder = mnist_folder(tmp_path, train=60, test=50)
    one, two = multi_mnist(folder), multi_fashion(folder)
    assert torch.equal(one.train.index_RT, two.train.index_RT)
    assert len(one.train) == len(one.test) and not torch.equal(
        one.train.index_RT, one.test.index_RT
    )


def test_svhn_has_one_image_a_row_and_validates_on_extra(tmp_path: Path) -> None:
    splits = svhn(svhn_folder(tmp_path))
    assert [len(rows) for rows in (splits.train, splits.val, splits.test)] == [60, 50, 30]
    image, labels_BT = splits.val.take(torch.arange(2))
    assert image.shape == (2, 3, 32, 32) and labels_BT.shape == (2, 1)
    assert image.max() == 1
    with pytest.raises(DataError, match="svhn .*got 2"):
        svhn(tmp_path, tasks=2)


def test_batches_hold_every_row_once_in_an_order_of_their_seed(made: Splits) -> None:
    def order(seed: list[int] | None) -> list[list[int]]:
        return [labels.tolist() for _, batch in Batches(made.val, 16, seed) for labels in batch]

    assert order(None) == made.val.take(torch.arange(40))[1].tolist()
    assert order([0, 1]) == order([0, 1]) != order([0, 2]) != order(None)
    assert sorted(order([0, 1])) == sorted(order(None))
    assert [len(image) for image, _ in Batches(made.val, 16)] == [16, 16, 8]
    assert len(Batches(made.val, 16)) == 3


def test_too_few_images_for_composites_are_refused() -> None:
    with pytest.raises(DataError, match="at .*got 2"):
        pairs(2, Draw(0))


@pytest.mark.real
def test_the_real_composites_have_the_published_counts_and_these_first_rows(
    real_data: Path,
) -> None:
    splits = multi_mnist(real_data / "mnist")
    counts = {"train": 100_000, "val": 20_000, "test": 20_000}
    for name, count in counts.items():
        rows: Rows = getattr(splits, name)
        assert len(rows) == count
        assert (torch.bincount(rows.index_RT[:, 0]) == 2).all()
        assert rows.index_RT[:, 0].max() == count // 2 - 1
        assert rows.index_RT[:2].tolist() == GOLDEN_FIRST.get(name, GOLDEN_INDEX[:2])
    image, labels_BT = splits.test.take(torch.arange(3))
    assert splits.test.index_RT[:3].tolist() == GOLDEN_INDEX
    assert labels_BT.tolist() == GOLDEN_LABELS
    assert (255 * image).sum((1, 2, 3)).round().tolist() == GOLDEN_SUMS
    assert sha256((255 * image).round().short().numpy().tobytes()).hexdigest() == GOLDEN_SHA256
    # label 7 is the first of the test file, as everybody's MNIST
    pixels = splits.test.images.pixels
    sums = [int(pixels[a].sum()) + int(pixels[b].sum()) for a, b in GOLDEN_INDEX]
    assert sums == GOLDEN_SUMS
