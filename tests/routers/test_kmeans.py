"""Online k-means routing against golden numbers, and how its means follow the rows.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.kmeans import KMeansRouter

MEANS = [[1.0, 0], [0, 2], [-1, -1]]
ROWS = torch.tensor([[3.0, 1], [1, 3], [-1, -2]])


def made(**settings: object) -> KMeansRouter:
    router = KMeansRouter(KMeansRouter.Config(**{"k": 1, **settings}), RouterShape(2, 3))
    router.mean_ED.copy_(torch.tensor(MEANS))
    return router.train()


def alone(values: Tensor) -> Tensor:
    return values


def test_the_nearest_means_by_the_cosine_have_equal_weights() -> None:
    """Cosines of [3, 1]: 3/sqrt(10) = .95, 1/sqrt(10) = .32, -4/sqrt(20) = -.89; lengths of means
    do not count: the product with [0, 2] is 2, that with [1, 0] of [1, 3] is 1."""
    assert made()(ROWS).weights_BE.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert made(k=2)(ROWS[:2]).weights_BE.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0]]


def test_means_move_towards_the_rows_that_they_were_given() -> None:
    """decay .5: [1, 0] and [3, 1]: [2, .5]; [0, 2] and [1, 3]: [.5, 2.5]; the third stays."""
    router = made(decay=0.5)
    router(ROWS[:2])
    assert router.mean_ED.tolist() == MEANS
    router.on_step_end(alone)
    assert router.mean_ED.tolist() == [[2, 0.5], [0.5, 2.5], [-1, -1]]


def test_two_passes_and_all_processes_are_one_step() -> None:
    """Expert 0 was given [3, 1] twice and, elsewhere, one row [6, 4]: mean [4, 2]; decay 0."""
    router = made(decay=0.0)
    router(ROWS[:1])
    router(ROWS[:1])
    router.on_step_end(lambda given: given + torch.tensor([[6.0, 4, 1], [0, 0, 0], [0, 0, 0]]))
    assert router.mean_ED.tolist() == [[4, 2], [0, 2], [-1, -1]]
    router.on_step_end(alone)  # nothing was counted since
    router.eval()(ROWS)
    router.on_step_end(alone)
    assert router.mean_ED.tolist() == [[4, 2], [0, 2], [-1, -1]]


def test_nothing_has_a_gradient() -> None:
    x_BD = ROWS.clone().requires_grad_()
    assert not made()(x_BD).weights_BE.requires_grad and not list(made().parameters())


def test_means_find_the_clusters_of_their_rows() -> None:
    """Four narrow clusters along the axes, and four means that start near two of them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    router = KMeansRouter(KMeansRouter.Config(k=1, decay=0.5), RouterShape(2, 4)).train()
    router.mean_ED.copy_(torch.tensor([[1.0, 0.3], [1, 0.9], [-1, -0.3], [-1, -0.9]]))
    for _ in range(100):
        rows = centres.repeat(32, 1) + 0.1 * torch.randn(128, 2, generator=generator)
        router(rows)
        router.on_step_end(alone)
    assert sorted(router.eval()(centres).weights_BE.argmax(-1).tolist()) == [0, 1, 2, 3]


def test_the_means_travel_with_the_weights() -> None:
    router, other = made(), made()
    router(ROWS)
    router.on_step_end(alone)
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    assert torch.equal(other.mean_ED, router.mean_ED)
    assert router.mean_ED.tolist() != MEANS
