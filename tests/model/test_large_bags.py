"""Bags of large logs: no table of levels, samples of long bags, pools that are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys_moe.model.encoders import item_bag
from recsys_moe.model.encoders.item_bag import ItemBag, LinearItemBag
from recsys_moe.model.request import Request

USERS, ITEMS, LEVELS = 3, 40, 4
SIZES = [40, 3, 0, 0]
"""Of the bags, that of the OOV user included: user 0 has all items, user 1 the first three."""


def a_bag(sample: int = 0, dropout: float = 0.0, kind: type[ItemBag] = ItemBag) -> ItemBag:
    """Pool = a sum of table rows, which are all different."""
    made = kind(
        "user", (USERS, ITEMS), levels=LEVELS, dims=(0, 4), dropout=dropout, sample=sample
    ).double()
    item_P = torch.cat([torch.arange(size) for size in SIZES])
    level_P = torch.arange(len(item_P)) % LEVELS
    made.set_entries(torch.tensor([0, *SIZES]).cumsum(0), (level_P * ITEMS + item_P).int())
    made.stream.reseed(0)
    torch.manual_seed(0)
    for parameter in made.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("training", [True, False])
def test_a_large_table_of_levels_is_never_made_and_the_pools_are_the_same(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[Tensor]] = []
    for most in (LEVELS * ITEMS, LEVELS * ITEMS - 1):
        monkeypatch.setattr(item_bag, "MOST_ROWS", most)
        made = a_bag(dropout=0.5, kind=LinearItemBag).train(training)
        if most < LEVELS * ITEMS:
            monkeypatch.delattr(LinearItemBag, "table")
            monkeypatch.delattr(ItemBag, "table")
        pool_BD = made(Request(torch.tensor([0, 1, 2, 0]), torch.tensor([7, 1, 1, 39])))
        pool_BD.square().sum().backward()
        found.append([pool_BD, *(one.grad for one in made.parameters() if one.grad is not None)])
    assert len(found[0]) == 3  # the pools, and the gradients of bases and slopes
    for naive, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, naive)


def test_a_sample_takes_every_neighbour_equally_often_and_none_twice() -> None:
    made, counts_P = a_bag(sample=15).train(), torch.zeros(sum(SIZES))
    for _ in range(400):
        entry_P, start_U, more_U1 = made._sampled(torch.tensor([0, 1, 2]))
        assert start_U.tolist() == [0, 15, 18] and len(entry_P.unique()) == 18
        assert (entry_P.diff() > 0).all()  # as the search for a row's neighbour needs
        counts_P[entry_P] += 1
    assert more_U1.flatten().tolist() == [40 / 15, 1, 0]
    assert (counts_P[40:] == 400).all()  # the small bag is whole
    # Binomial, 15 / 40 of 400: 150 +- 10.
    assert ((counts_P[:40] - 150).abs() < 50).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_mean_of_sampled_pools_is_the_whole_bag_without_the_item_of_the_row(
    dropout: float,
) -> None:
    made = a_bag(sample=15, dropout=dropout).train()
    request = Request(torch.zeros(2).int(), torch.tensor([7, 20]))
    mean_BD = torch.stack([made(request).detach() for _ in range(1500)]).mean(0)
    whole = a_bag().train()
    torch.testing.assert_close(mean_BD, whole(request), atol=0.16, rtol=0)


def test_the_item_of_a_row_is_in_no_sampled_pool() -> None:
    made = a_bag(sample=15).train()
    with torch.no_grad():
        made.table_RW.zero_()
        made.table_RW[7 % LEVELS * ITEMS + 7] = 1.0
    item_B = torch.tensor([7, 20])
    pools = torch.stack([made(Request(torch.zeros(2).int(), item_B)) for _ in range(50)])
    assert (pools[:, 0] == 0).all() and (pools[:, 1] > 0).any()


def test_bags_that_are_no_longer_than_the_sample_are_whole() -> None:
    request = Request(torch.tensor([0, 1, 2]), torch.tensor([7, 2, 0]))
    pools = [a_bag(sample).train()(request) for sample in (0, 40)]
    assert torch.equal(*pools)


def test_kept_pools_are_the_same_and_each_bag_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, read = a_bag(kind=LinearItemBag).eval(), []
    wanted = made(Request(torch.tensor([0, 1, 0]), torch.zeros(3).int()))
    sums = ItemBag._sums
    monkeypatch.setattr(
        ItemBag, "_sums", lambda self, row_P, s: read.append(len(row_P)) or sums(self, row_P, s)
    )
    made.keep_pools(True)
    for _ in range(3):
        assert torch.equal(made(Request(torch.tensor([0, 1, 0]), torch.zeros(3).int())), wanted)
    assert sum(read) == 43  # entries of both bags, once


def test_pools_are_not_kept_beyond_an_evaluation() -> None:
    made = a_bag().eval()
    request = Request(torch.tensor([0]), torch.tensor([0]))
    made.keep_pools(True)
    before = made(request).detach()
    made.keep_pools(False)
    with torch.no_grad():
        made.table_RW.mul_(2)
    torch.testing.assert_close(made(request), 2 * before)
