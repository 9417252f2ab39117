"""User and item biases: shrunken deviations of users and items, added to what the towers learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.kinds import KINDS, Constant
from recsys_moe.model.biases import Biases

Rows = tuple[Tensor, Tensor, Tensor]


def fitted(kind: str, chunks: list[Rows], users: int, items: int) -> Biases:
    labels_N = torch.cat([labels for *_, labels in chunks])
    counts = {
        "labelled": len(labels_N),
        "mean": float(labels_N.mean()),
        "positive": float((labels_N == 1).sum()),
        "std": float(labels_N.std(correction=0)),
    }
    biases = Biases(users, items, [KINDS[kind].constant(counts)])

    def rows() -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        yield from ((*chunk, torch.ones_like(chunk[2])) for chunk in chunks)

    biases.fit(0, KINDS[kind], rows)
    return biases


def rows_of(users: int, items: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Every user with every item, shuffled."""
    order = torch.randperm(users * items, generator=torch.Generator().manual_seed(seed))
    return order // items, order % items


def test_without_labels_that_differ_there_are_no_effects() -> None:
    user_N, item_N = rows_of(4, 5)
    biases = fitted("regression", [(user_N, item_N, torch.full((20,), 3.0).double())], 4, 5)
    assert not biases.user_UT.any() and not biases.item_IT.any()
    assert float(biases.shift_T) == 3 and float(biases.scale_T) == 1  # no deviation to count in


def test_planted_effects_of_a_regression_are_found_with_many_rows() -> None:
    """100 x 100 rows with noise of 0.5: an effect is the mean of 100 rows, off by about 0.05."""
    generator = torch.Generator().manual_seed(1)
    user_N, item_N = rows_of(100, 100)
    user_U, item_I = (torch.randn(100, generator=generator).double() for _ in range(2))
    noise_N = torch.randn(10_000, generator=generator).double() / 2
    labels_N = 3 + user_U[user_N] + item_I[item_N] + noise_N
    biases = fitted("regression", [(user_N, item_N, labels_N)], 100, 100)
    for found_I, planted_I in ((biases.user_UT, user_U), (biases.item_IT, item_I)):
        centred_I = planted_I - planted_I.mean()  # the mean of all is in the shift
        assert (found_I[:100, 0] - centred_I).abs().max() < 0.25


def test_planted_effects_of_a_binary_task_are_found_as_log_odds() -> None:
    """Of 4,000 rows an item, a share p has log odds off by about 1 / sqrt(4000 p (1 - p)) < 0.06"""
    user_N, item_N = rows_of(4000, 4)
    shares_I = torch.tensor([0.05, 0.3, 0.7, 0.95]).double()
    drawn_N = torch.rand(len(user_N), generator=torch.Generator().manual_seed(2)).double()
    biases = fitted("binary", [(user_N, item_N, (drawn_N < shares_I[item_N]).double())], 4000, 4)
    found_I = (biases.shift_T + biases.item_IT[:4, 0]).sigmoid()
    assert found_I.tolist() == pytest.approx(shares_I.tolist(), abs=0.03)


def test_users_that_differ_by_chance_alone_have_effects_of_0() -> None:
    """Every user has one positive of two, as drawn negatives make it: less spread than chance."""
    user_N = torch.arange(200) // 2
    labels_N = (torch.arange(200) % 2).double()
    biases = fitted("binary", [(user_N, torch.arange(200) % 7, labels_N)], 100, 7)
    assert not biases.user_UT.any()


def test_effects_of_a_regression_have_the_unit_of_its_labels() -> None:
    user_N, item_N = rows_of(30, 20)
    labels_N = torch.randn(600, generator=torch.Generator().manual_seed(4)).double()
    labels_N += user_N % 3
    one, ten = (fitted("regression", [(user_N, item_N, c * labels_N)], 30, 20) for c in (1, 10))
    assert one.user_UT.abs().max() > 0.5
    torch.testing.assert_close(10 * one.user_UT, ten.user_UT, rtol=1e-4, atol=1e-4)


def test_items_that_are_always_positive_have_finite_effects_that_order_them() -> None:
    """Newton's step for an effect overshoots where hardly any row is of the other class."""
    item_N = torch.arange(4).repeat_interleave(2000)
    shares_N = torch.tensor([0.0, 0.001, 0.999, 1.0])[item_N]
    label_N = (torch.arange(8000) % 1000 < 1000 * shares_N).double()
    biases = fitted("binary", [(torch.arange(8000) % 50, item_N, label_N)], 50, 4)
    assert biases.item_IT[:4, 0].diff().min() >= 0 and biases.item_IT.abs().max() <= 4


def test_few_rows_move_an_effect_less_than_many() -> None:
    """Ten users alternate around the mean by 1; the last one has a single row, also 1 above."""
    user_N = torch.cat([torch.arange(10).repeat_interleave(50), torch.tensor([10])])
    signs_N = torch.cat([(user_N[:-1] % 2 * 2 - 1).double(), torch.ones(1).double()])
    noise_N = torch.randn(501, generator=torch.Generator().manual_seed(3)).double()
    biases = fitted("regression", [(user_N, torch.zeros(501).long(), signs_N + noise_N)], 11, 1)
    assert biases.user_UT[1:10:2, 0].min() > 0.7
    assert abs(biases.user_UT[10, 0]) < abs(signs_N[-1] + noise_N[-1])


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_effects_do_not_depend_on_how_the_rows_are_cut(seed: int, size: int) -> None:
    user_N, item_N = rows_of(6, 4, seed)
    labels_N = torch.rand(24, generator=torch.Generator().manual_seed(seed)).double().round()
    whole = user_N, item_N, labels_N
    pieces = list(zip(*(column.split(size) for column in whole), strict=True))
    one, many = (fitted("binary", chunks, 6, 4) for chunks in ([whole], pieces))
    assert torch.allclose(one.user_UT, many.user_UT) and torch.allclose(one.item_IT, many.item_IT)


def test_a_row_of_weight_2_is_that_row_twice() -> None:
    user_N, item_N = rows_of(5, 4)
    labels_N = torch.arange(20).double() % 7
    twice = [torch.cat([column, column[:10]]) for column in (user_N, item_N, labels_N)]
    weight_N = torch.cat([torch.full((10,), 2.0), torch.ones(10)]).double()
    constants = [Constant(3.0, 2.0, 4.0)]
    weighted, repeated = (Biases(5, 4, constants) for _ in range(2))
    weighted.fit(0, KINDS["regression"], lambda: iter([(user_N, item_N, labels_N, weight_N)]))
    repeated.fit(0, KINDS["regression"], lambda: iter([(*twice, torch.ones(30).double())]))
    assert weighted.item_IT.any() and torch.allclose(weighted.item_IT, repeated.item_IT)
    assert torch.allclose(weighted.user_UT, repeated.user_UT)


def test_oov_ids_have_no_bias_even_if_training_rows_name_them() -> None:
    user_N, item_N = rows_of(3, 3)
    user_N = torch.where(user_N == 2, 5, user_N)  # 5 users are known: index 5 is the OOV user
    biases = fitted("regression", [(user_N, item_N, torch.arange(9).double())], 5, 3)
    assert biases.user_UT[5, 0] == 0
    assert not biases.user_UT[2:5].any()  # known, without rows


def test_logits_are_shift_plus_scaled_output_plus_both_effects() -> None:
    """10 + 2 x 0.5 + 0.25 - 4 = 7.25"""
    biases = Biases(2, 2, [Constant(10.0, 2.0, 4.0)])
    biases.user_UT[1, 0], biases.item_IT[0, 0] = 0.25, -4.0
    row = torch.tensor([[0.5]]), torch.tensor([1]), torch.tensor([0])
    assert biases(*row).item() == 7.25
    assert biases.of_task(row[0][:, 0], row[1], row[2], 0).item() == 7.25
