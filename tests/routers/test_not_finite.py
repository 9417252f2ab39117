"""Every router: what is not finite shows in the weights of experts that are computed.

The layer computes what is selected, so a row that selects nothing would count as a plain 0.
Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import pytest
import torch

from recsys_moe.routers import ROUTERS, Router, RouterShape

D, E, USERS, ROWS, BAD = 6, 8, 20, 32, 3
WITHOUT_GATE = ("hash", "thor", "shared_bottom", "single_task")
CASES: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in sorted(ROUTERS) if name not in WITHOUT_GATE),
    *(("moesart", {"strategy": strategy}) for strategy in ("i", "ii", "iii")),
    ("moesart", {"sampler": "sequential"}),
    ("moesart", {"replacement": True}),
    ("comet", {"permutation": True}),
    ("topk", {"permutation": True}),
    ("topk", {"noise": True}),
    ("soft_topk", {"p": 2}),
]


def make(name: str, settings: dict[str, object]) -> Router:
    torch.manual_seed(0)
    found = ROUTERS[name]
    return found(found.Config(**settings), RouterShape(D, E, USERS))


def shows_nan(router: Router, x_BD: torch.Tensor) -> torch.Tensor:
    """Which rows have a selected expert whose weight is NaN. (B,)"""
    routing = router(x_BD, torch.arange(len(x_BD)) % USERS)
    return (routing.selected_BE & routing.weights_BE.isnan()).any(1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_row_that_is_not_finite_selects_experts_whose_weight_is_nan(
    name: str, settings: dict[str, object], bad: float
) -> None:
    x_BD = torch.randn(ROWS, D)
    x_BD[BAD] = bad
    assert shows_nan(make(name, settings).train(), x_BD)[BAD]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_one_row_of_a_gate_that_is_nan_shows_in_some_weight(
    name: str, settings: dict[str, object]
) -> None:
    router = make(name, settings).train()
    x_BD = torch.randn(ROWS, D)
    for parameter in (p for p in router.parameters() if p.dim() == 2):
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter[0] = torch.nan
        assert shows_nan(router, x_BD).any()
        with torch.no_grad():
            parameter.copy_(before)
