"""Losses at equal minutes, where an epoch of one form costs less."""

from __future__ import annotations

from itertools import product

from research.joint_minutes import BASE, COST, TIMES, best_by, read, table


def test_a_cheaper_epoch_fits_more_often_into_the_time() -> None:
    """4 epochs of .75 end at 3.0; the fifth, which has the lowest loss, at 3.75."""
    losses = {1: 0.5, 2: 0.4, 3: 0.45, 4: 0.3, 5: 0.2}
    assert best_by(losses, 3, 1.0) == 0.4
    assert best_by(losses, 3, 0.75) == 0.3
    assert best_by(losses, 3.75, 0.75) == 0.2


def test_the_table_has_paired_differences_and_leaves_out_forms_that_were_not_kept() -> None:
    """Two seeds: the penalty has .3 for .4 and .1 for .4, so -.2 +- .1 in the mean."""
    found = {(BASE, watch, seed): {1: 0.4} for watch, seed in product(TIMES, range(2))}
    found |= {("agree-2", watch, seed): {1: (0.3, 0.1)[seed]} for _, watch, seed in found}
    _, _, *lines = table(found)
    assert len(lines) == sum(map(len, TIMES.values()))
    assert lines[0] == "| 0.9 | 8 | 0.4000 | -0.2000 +- 0.1000 |  |  |"


def test_the_stored_losses_have_five_seeds_of_each_form() -> None:
    seeds = {key: set[int]() for key in {(form, watch) for form, watch, _ in read()}}
    for form, watch, seed in read():
        seeds[form, watch].add(seed)
    assert seeds.keys() == {(BASE, "0.9"), ("agree-2", "0.9"), *product(COST, ["0.1"])}
    assert [one for one in seeds.values() if one != set(range(5))] == []
