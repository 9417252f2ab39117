"""`recsys-moe routers`: sizes worked by hand, for every router and every configuration."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from recsys_moe.cli import app
from recsys_moe.config.overview import Overview, overviews
from recsys_moe.config.settings import parse_config
from recsys_moe.routers import ROUTERS


def found(**model: object) -> dict[str, Overview]:
    return overviews(parse_config({"model": model}))


@pytest.fixture(scope="module")
def movielens() -> dict[str, Overview]:
    """p = 2 * 128 = 256, n = 16, k = 2: the defaults."""
    return found()


SIZES = [
    # parameters, experts per example in training and at inference
    *((name, 4112, "2", "2") for name in ("moesart", "pps", "topk", "vmoe", "smoe", "sparse_ot")),
    *((name, 4112, "2", "2") for name in ("default_moe", "loss_free", "sparsemixer")),
    # n (p + 1) = 16 * 257
    ("softmax", 4112, "dense", "dense"),
    *(
        (name, 4112, "k on average", "k on average")
        for name in ("expert_choice", "expert_threshold")
    ),
    ("top_p", 4113, "k on average", "k on average"),  # n (p + 1) and the scale
    *((name, 4112, "dense to sparse", "dense to sparse") for name in ("soft_topk", "relu")),
    *((name, 4096, "1", "1") for name in ("base", "sinkhorn_base")),  # n p = 16 * 256
    ("xmoe", 2177, "2", "2"),  # n/2 (p + n) + 1 = 8 * 272 + 1
    ("dselect_k", 2570, "dense to sparse", "dense to sparse"),  # k (log2 n + 1) (p + 1)
    ("comet", 15934, "dense to sparse", "dense to sparse"),  # (2n - 1) k (p + 1) = 31 * 2 * 257
    ("hash", 0, "1", "1"),
    ("kmeans", 0, "2", "2"),
    ("thor", 0, "1", "dense"),
    ("shared_bottom", 0, "1 fixed", "1 fixed"),
    ("single_task", 0, "8 fixed", "8 fixed"),  # two tasks
    ("cgc", 2827, "11 fixed", "11 fixed"),  # 16 // 3 = 5 own and 6 shared: 11 (p + 1) = 11 * 257
]


@pytest.mark.parametrize(("name", "parameters", "training", "inference"), SIZES)
def test_sizes_of_every_router_at_the_movielens_size(
    movielens: dict[str, Overview], name: str, parameters: int, training: str, inference: str
) -> None:
    found = movielens[name]
    assert (found.parameters, found.training, found.inference) == (parameters, training, inference)


def test_every_router_of_the_table_is_listed_and_works_with_the_defaults(
    movielens: dict[str, Overview],
) -> None:
    assert list(movielens) == list(ROUTERS) and {name for name, *_ in SIZES} == set(ROUTERS)
    assert [name for name, router in movielens.items() if router.problem] == []


def test_the_books_size_with_k_of_the_configured_router() -> None:
    """p = 128, n = 9, k = 4: 9 * 129 = 1161; 4 * 5 * 129; 17 * 4 * 129; 4 * (128 + 9) + 1."""
    books = found(embedding_dim=64, num_experts=9, router={"name": "moesart", "k": 4})
    expected = {"topk": 1161, "dselect_k": 2580, "comet": 8772, "xmoe": 549}
    assert {name: books[name].parameters for name in expected} == expected
    assert books["topk"].training == "4"


@pytest.mark.parametrize(
    ("settings", "parameters", "training", "inference"),
    [
        ({"name": "topk", "noise": True}, 4112 + 4096, "2", "2"),
        ({"name": "topk", "permutation": True}, 4112 + 256, "dense to sparse", "2"),
        ({"name": "topk", "k": 16}, 4112, "dense", "dense"),
        ({"name": "softmax", "inference": "topk"}, 4112, "dense", "2"),
        ({"name": "moesart", "inference": "dense"}, 4112, "2", "dense"),
    ],
)
def test_settings_of_the_configured_router_count(
    settings: dict[str, object], parameters: int, training: str, inference: str
) -> None:
    router = found(router=settings)[str(settings["name"])]
    assert (router.parameters, router.training, router.inference) == (
        parameters,
        training,
        inference,
    )


def test_a_router_that_cannot_work_says_why_and_the_others_are_listed() -> None:
    listed = found(num_experts=1, router="softmax")
    assert listed["softmax"].parameters == 257
    topk = listed["topk"]
    assert topk.parameters is topk.training is topk.inference is None
    assert topk.problem and "1..model.num_experts=1, got 2; lower k" in topk.problem


def test_a_router_from_outside_is_listed_too() -> None:
    name = f"{ROUTERS['smoe'].__module__}:SMoERouter"
    listed = found(router={"name": name, "k": 3})
    assert list(listed) == [*ROUTERS, name] and listed[name].training == "3"


def test_penalties_that_a_router_refuses_do_not_hide_its_size() -> None:
    config = parse_config({"penalties": {"trimmed_lasso": 0.1}})
    assert overviews(config)["hash"].parameters == 0


def test_the_command_prints_one_line_per_router_or_json() -> None:
    sizes = ["--set", "model.num_experts=8", "--set", "model.router.k=3"]
    text = CliRunner().invoke(app, ["routers", *sizes])
    lines = text.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["router", *ROUTERS]
    assert lines[1].split()[:4] == ["moesart", "3", "3", str(8 * 257)]
    listed = json.loads(CliRunner().invoke(app, ["routers", "--json", *sizes]).stdout)
    assert list(listed) == list(ROUTERS)
    assert listed["comet"]["parameters"] == 15 * 3 * 257
    assert listed["expert_choice"]["batch_dependent"] is True


def test_the_command_shows_the_problem_in_place_of_the_sizes() -> None:
    sizes = ["--set", "model.num_experts=1", "--set", "model.router.name=softmax"]
    lines = CliRunner().invoke(app, ["routers", *sizes]).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("comet"))
    assert line.split()[1:4] == ["-", "-", "-"] and "lower k" in line


def test_a_shipped_configuration_gives_the_sizes() -> None:
    """books: n = 9, p = 2 * 64, so 9 * 129 = 1161."""
    result = CliRunner().invoke(app, ["routers", "--config", "books", "--json"])
    assert json.loads(result.stdout)["softmax"]["parameters"] == 1161
