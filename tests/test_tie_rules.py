"""Where values tie, the lower index comes first: on any processor, thread count, library build."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from recsys_moe.model.tower_pruning import _ascending_order
from recsys_moe.routers.base_layer import _favourites, balanced_assignment
from recsys_moe.routers.moesart import sample_gumbel

ROOT = Path(__file__).parents[1]
SORTS = {"sort", "argsort", "topk", "argpartition", "sort_values", "nlargest", "nsmallest"}
"""Of torch, numpy and pandas; those of pyarrow and of Python, and numpy's lexsort, are stable."""


def unruled(source: str) -> list[str]:
    """Calls that leave the order of equals to a library and use more than the sorted values."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    only_values = {id(node.value) for node in attributes if node.attr == "values"}
    return [ast.unparse(call) for call in calls if _sorts(call) and id(call) not in only_values]


def _sorts(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in SORTS):
        return False
    told = {word.arg: ast.unparse(word.value) for word in call.keywords}
    of_numpy = ast.unparse(call.func) == "np.sort"  # gives values alone
    return not (of_numpy or told.get("stable") == "True" or told.get("kind") == "'stable'")


def statement(source: str) -> bool:
    """`names.sort()` for itself: a list of Python, whose sort is stable."""
    return source.endswith(".sort()")


def test_every_sort_of_the_packages_has_a_rule_for_ties() -> None:
    files = [*(ROOT / "recsys_moe").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix(): calls
        for path in files
        if (calls := [c for c in unruled(path.read_text(encoding="utf-8")) if not statement(c)])
    }
    several = "points.sort_values(['cost', 'loss'])"  # by several columns pandas sorts stably
    assert found.pop("recsys_moe/lab/report/comparison.py") == [several]
    assert len(files) > 200 and found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x.argsort()", 1),
        ("x.argsort(stable=True)", 0),
        ("np.argsort(x, kind='stable')", 0),
        ("x.topk(2).indices", 1),
        ("x.topk(2).values", 0),
        ("np.sort(x)", 0),
    ],
)
def test_a_sort_without_a_rule_is_found(source: str, count: int) -> None:
    assert len(unruled(source)) == count


def test_of_equal_units_the_first_ones_are_kept() -> None:
    """The smallest effects go first: of the equal ones those at the end."""
    assert _ascending_order(torch.tensor([1.0, 0, 0, 0, torch.nan])).tolist() == [3, 2, 1, 0, 4]


def test_of_equal_keys_the_first_experts_are_drawn() -> None:
    even = torch.full((1, 40), 1 / 40)
    drawn, possible = sample_gumbel(even, torch.full((1, 40), 0.5), k=3)
    assert drawn.tolist() == [[0, 1, 2]] and possible.all()


def test_an_example_bids_for_the_first_of_equal_experts() -> None:
    """Row 0: a lead of 0 over its equal. Row 1: 3 over 1."""
    favourite, margin = _favourites(torch.tensor([[2.0, 0, 2], [0, 3, 1]]))
    assert favourite.tolist() == [0, 1] and margin.tolist() == [0, 2]


def test_equal_examples_are_shared_out_to_all_experts_in_their_order() -> None:
    assert balanced_assignment(torch.zeros(6, 3)).tolist() == [0, 0, 1, 1, 2, 2]
