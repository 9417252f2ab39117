"""What is searched: the ranges of the papers, a user's file over them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.lab.tune.dimensions import Choices, Range, Space
from recsys_moe.lab.tune.space import default_space, make_space
from recsys_moe.routers import ROUTERS


def space(router: str = "moesart", file: Any = None, fixed: tuple[str, ...] = ()) -> Space:
    return make_space(base(router), file or {}, fixed)


def base(router: Any = "moesart", **sections: Any) -> dict[str, Any]:
    return parse_config({"model": {"router": router}, **sections}).model_dump(mode="json")


def test_the_default_space_is_around_the_given_settings() -> None:
    assert space() == {
        "optim.lr": Range(1e-4, 1e-2, log=True),  # 1e-3 / 10 and * 10
        "penalties.trimmed_lasso": Choices((0.0, 0.01, 0.1, 1.0, 10.0)),
    }
    given = base("topk", optim={"lr": 3e-3})
    assert make_space(given, {}, ()) == {"optim.lr": Range(3e-4, 3e-2, log=True)}
    gamma = Choices((0.01, 0.1, 1.0, 5.0, 10.0))
    assert space("comet")["model.router.gamma"] == gamma == space("dselect_k")["model.router.gamma"]
    assert space("loss_free")["model.router.bias_rate"] == Choices((1e-4, 1e-3, 1e-2))
    assert space("relu")["model.router.l1_growth"] == Choices((1.05, 1.1, 1.2, 1.5))
    assert space("sparsemixer")["model.router.epsilon"] == Choices((0.05, 0.1, 0.2, 0.5))


def test_how_many_experts_tasks_share_is_searched_within_the_number_there_is() -> None:
    key = "model.router.shared"
    assert space("shared_bottom")[key] == Choices((1, 2, 4, 8, 16))
    assert space("cgc")[key] == Choices((None, 2, 4, 8))  # 16 / 8, / 4, / 2
    few = parse_config({"model": {"num_experts": 5, "router": {"name": "cgc", "shared": 3}}})
    found = make_space(few.model_dump(mode="json"), {}, ())
    assert found[key] == Choices((None, 0, 1, 2, 3))
    assert key not in space("single_task")


def test_a_given_value_that_the_paper_does_not_try_is_among_the_values() -> None:
    given = base(penalties={"trimmed_lasso": 0.5})
    lasso = make_space(given, {}, ())["penalties.trimmed_lasso"]
    assert lasso == Choices((0.0, 0.01, 0.1, 0.5, 1.0, 10.0))


@pytest.mark.parametrize(
    ("dimension", "value", "edge"),
    [
        (Range(1e-4, 1e-2, log=True), 1.2e-4, "lower"),  # log10: 0.08 of 2 is 4%
        (Range(1e-4, 1e-2, log=True), 1.3e-4, None),  # log10: 0.114 of 2 is 5.7%
        (Range(1e-4, 1e-2, log=True), 8e-3, "upper"),  # 1.903 of 2 is 95.2%
        (Range(0, 0.5), 0.0, None),  # nothing lies below
        (Range(0, 0.5), 0.48, "upper"),
        (Range(2, 4, whole=True), 2, "lower"),
        (Range(2, 4, whole=True), 3, None),
        (Choices((0.0, 0.1, 1.0)), 1.0, "upper"),
        (Choices((0.0, 0.1, 1.0)), 0.0, None),
        (Choices((0.5, 0.1, 1.0)), 0.1, "lower"),
        (Choices((0.1, 1.0)), 1.0, None),  # one of two is always outermost
        (Choices(("3", "i", "x")), "3", None),
    ],
)
def test_an_edge_is_the_last_twentieth_or_the_outermost_number(
    dimension: Range | Choices, value: Any, edge: str | None
) -> None:
    assert dimension.edge(value) == edge


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_every_default_space_is_accepted_by_its_router(router: str) -> None:
    assert make_space(base(router), {}, ()) == default_space(base(router))


def test_the_docs_name_every_key_that_is_searched() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/tune.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    told = {(name, key.strip(" `")) for names, key in rows for name in re.findall("`(.*?)`", names)}
    searched = {(name, key) for name in ROUTERS for key in space(name) if key != "optim.lr"}
    assert {(name, key) for name, key in told if name in ROUTERS} == searched


def test_a_file_widens_adds_and_leaves_out() -> None:
    file = {
        "optim.lr": {"low": "1e-5", "high": 0.01, "log": True},  # YAML takes 1e-5 for text
        "penalties.trimmed_lasso": None,
        "model.router.k": {"low": 2, "high": 4},
        "model.dropout": {"low": 0, "high": 0.5},
        "model.router.strategy": {"choices": ["3", "i"]},
    }
    assert space(file=file) == {
        "optim.lr": Range(1e-5, 0.01, log=True),
        "model.router.k": Range(2, 4, whole=True),
        "model.dropout": Range(0, 0.5),
        "model.router.strategy": Choices(("3", "i")),
    }


def test_what_training_minimises_can_be_searched_where_the_data_have_the_task() -> None:
    given = base(tasks={"watch": {"weight": 0.1}})
    key, file = "tasks.watch.training_weight", {"choices": [None, 0.5, 0.9]}
    assert make_space(given, {key: file}, ())[key] == Choices((None, 0.5, 0.9))
    with pytest.raises(ConfigError, match="training_weight of one of the data's tasks"):
        make_space(given, {"tasks.wacth.training_weight": file}, ())


def test_settings_of_the_weighting_can_be_searched_and_not_which_it_is() -> None:
    given = base(tasks={"weighting": "gradnorm"})
    key, file = "tasks.weighting.alpha", {"low": 0.0, "high": 3.0}
    assert make_space(given, {key: file}, ())[key] == Range(0.0, 3.0, False, False)
    with pytest.raises(ConfigError, match="weights cannot be compared"):
        make_space(given, {"tasks.weighting.name": {"choices": ["famo", "fixed"]}}, ())
    with pytest.raises(ConfigError, match="weights cannot be compared"):
        make_space(base(), {key: file}, ())


def test_what_the_command_line_gives_is_not_searched() -> None:
    assert list(space(fixed=("optim.lr", "model.num_experts"))) == ["penalties.trimmed_lasso"]
    with pytest.raises(ConfigError, match="optim.lr: it is also given on the command line"):
        space(file={"optim.lr": {"low": 1, "high": 2}}, fixed=("optim.lr",))
    with pytest.raises(ConfigError, match="nothing is left to search"):
        space("topk", fixed=("optim.lr",))


@pytest.mark.parametrize(
    ("key", "section", "message"),
    [
        ("optim.lrr", {"choices": [1]}, "optim: unknown key 'lrr'.*'lr'"),
        ("optim.lr", {"low": 1e-4}, r"\{low: 1e-5, high: 1e-3, log: true\}"),
        ("optim.lr", {"low": 1e-4, "high": 1e-3, "logg": True}, "logg"),
        ("optim.lr", [1e-4, 1e-3], r"or \{choices: \[0, .*got \[0.0001"),
        ("optim.lr", {"low": 1e-3, "high": 1e-4}, "low must be less than high.*0.001"),
        ("optim.lr", {"low": "x", "high": 1}, "lr.low: .*'low': 'x'"),
        ("optim.lr", {"low": 1, "high": float("inf")}, "lr.high: .*finite"),
        ("optim.lr", {"low": True, "high": 2}, "lr.low: must be a number"),
        ("optim.lr", {"low": 0, "high": 1, "log": True}, "log: true needs low > 0"),
        ("optim.lr", {"low": 1, "high": 2, "log": "yes"}, "lr.log: .*'yes'"),
        ("optim.lr", {"low": -1, "high": 1}, "greater than 0, got -1"),
        ("optim.lr", {"choices": []}, "different plain values"),
        ("optim.lr", {"choices": 3}, "choices': 3"),
        ("optim.lr", {"choices": [0.1, 0.1]}, r"different .*\[0.1, 0.1"),
        ("optim.lr", {"choices": [[0.1]]}, "lr.choices: "),
        ("model.router.k", {"choices": [2, 17]}, "17"),
        ("model.router.k", {"low": 2, "high": 17}, "17"),
        ("model.router.k", {"low": 2.5, "high": 4}, "2.5"),
        ("penalties", {"choices": [None]}, "--space penalties"),
        ("tasks.watch.weight", {"choices": [0.1, 0.9]}, "weights cannot be compared"),
        ("trainer.seed", {"low": 0, "high": 9}, "use --seed"),
        ("model.router.name", {"choices": ["topk"]}, "use --router"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(key: str, section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        space(file={key: section})
    assert f"--space {key}" in str(caught.value) and "\n" not in str(caught.value)
