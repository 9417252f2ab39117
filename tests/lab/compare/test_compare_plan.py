"""What a comparison resolves before its first run, and what it refuses to mix."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.diff import flat
from recsys_moe.config.files import parse_set
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.compare.plan import make_plan, settle
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.jobs.plan_file import check_folder, check_settings
from recsys_moe.schema import Schema
from tests.conftest import TINY_MODEL

TINY = {"model": TINY_MODEL, "trainer": {"max_epochs": 2, "batch_size": 64}}
MINE = {"mine": {"model": {"router": {"name": "topk"}}}}
ASKED = ComparisonRequest(
    routers=["moesart", "topk"],
    seeds=[0, 1],
    weights=["0.9,0.1"],
    typed=TINY,
    file={},  # of a file: nothing follows the data
)


def configs(request: ComparisonRequest, data: Path) -> dict[str, dict[str, Any]]:
    return {key: c.config for key, c in make_plan(request, data).contenders.items()}


def test_settings_of_a_router_are_over_the_file_and_below_the_command_line(prepared: Path) -> None:
    request = replace(
        ASKED,
        file={"optim": {"lr": 0.1, "eps": 0.1}, "penalties": {"z_loss": 0.1}},
        settings={"topk": {"optim": {"lr": 0.2, "eps": 0.2}}},
        typed={"optim": {"eps": 0.3}},
    )
    found = configs(request, prepared)
    pick = ("lr", "eps")
    assert [found["topk-0.9_0.1"]["optim"][key] for key in pick] == [0.2, 0.3]
    assert [found["moesart-0.9_0.1"]["optim"][key] for key in pick] == [0.1, 0.3]
    assert found["topk-0.9_0.1"]["penalties"]["z_loss"] == 0.1


def test_without_a_file_all_routers_have_what_suits_the_data(prepared: Path) -> None:
    found = configs(replace(ASKED, file=None), prepared)
    for config in found.values():
        assert config["data"]["resample_negatives"] and config["model"]["item_bag"] == "ratings"
        assert config["model"]["router"]["k"] == 2
    assert configs(ASKED, prepared)["topk-0.9_0.1"]["model"]["item_bag"] == "none"


def test_keys_of_the_router_section_go_to_the_routers_that_have_them(prepared: Path) -> None:
    request = replace(
        ASKED, routers=["topk", "softmax"], typed={"model": {"router": {"k": 3, "noise": True}}}
    )
    found = configs(request, prepared)
    assert found["topk-0.9_0.1"]["model"]["router"]["k"] == 3
    assert "k" not in found["softmax-0.9_0.1"]["model"]["router"]
    with pytest.raises(
        ConfigError, match="model.router.nois=True: none of topk, softmax.*mean 'noise'"
    ):
        make_plan(replace(request, typed={"model": {"router": {"nois": True}}}), prepared)


def test_experts_that_cannot_be_divided_among_the_tasks_are_refused(prepared: Path) -> None:
    few = {"model": {**TINY_MODEL, "num_experts": 2}}
    with pytest.raises(ConfigError, match="router cgc: .*above the number of tasks, 2, for cgc"):
        make_plan(replace(ASKED, routers=["single_task", "cgc"], typed=few), prepared)


def test_a_label_can_name_a_second_variant_of_a_router(prepared: Path) -> None:
    noisy = {"model": {"router": {"name": "topk", "noise": True}}}
    request = replace(ASKED, routers=["topk", "noisy"], settings={"noisy": noisy})
    found = configs(request, prepared)
    assert [found[f"{label}-0.9_0.1"]["model"]["router"]["noise"] for label in request.routers] == [
        False,
        True,
    ]


def test_what_training_minimises_is_a_label_s_own(prepared: Path) -> None:
    watching = {"tasks": {"watch": {"training_weight": 0.7}}}
    request = replace(ASKED, routers=["topk"], settings={"topk": watching}, weights=["0.1,0.9"])
    (only,) = configs(request, prepared).values()
    assert only["tasks"] == {
        "weighting": {"name": "fixed"},
        "watch": {"weight": 0.1, "training_weight": 0.7},
        "rating": {"weight": 0.9, "training_weight": None},
    }


def test_a_label_may_have_a_weighting_of_its_own(prepared: Path) -> None:
    own = {"tasks": {"weighting": {"name": "gradnorm", "alpha": 0.5}}}
    request = replace(ASKED, routers=["topk"], settings={"topk": own}, weights=["0.1,0.9"])
    (only,) = configs(request, prepared).values()
    assert only["tasks"]["weighting"] == {"name": "gradnorm", "alpha": 0.5, "lr": 0.025}


def test_task_weights_are_those_of_the_data_unless_asked_otherwise(prepared: Path) -> None:
    both = replace(ASKED, routers=["topk"], weights=["0.9,0.1", "0.1,0.9"])
    assert list(configs(both, prepared)) == ["topk-0.9_0.1", "topk-0.1_0.9"]
    given = [task.weight for task in Schema.load(prepared).tasks]
    (only,) = configs(replace(both, weights=()), prepared).values()
    assert [only["tasks"][name]["weight"] for name in ("watch", "rating")] == given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routers": ["topkk"]}, "got 'topkk'.*'topk'"),
        ({"routers": ["min"], "settings": MINE}, "labels .*got 'min'.*'mine'"),
        ({"routers": ["topk", "topk"]}, "topk is given twice"),
        ({"routers": []}, "must name at least one"),
        ({"weights": ["0.9"]}, "--weights .*got '0.9'"),
        ({"weights": ["0.9,x"]}, "got '0.9,x'"),
        ({"weights": ["0.9,-1"]}, "got '0.9,-1'"),
        ({"weights": ["0,0"]}, "not all 0, .*got '0,0'"),
        ({"split": "tset"}, "--split must be one of"),
        ({"settings": {"tpok": {}}}, "unknown router 'tpok'.*'topk'"),
        ({"settings": {"mine": {}}}, "'mine'; .*its router in mine.model.router.name"),
        ({"typed": {"model": {"router": {"kk": 3}}}}, "router.kk=3: none of .* has this key"),
        (
            {"settings": {"topk": {"tasks": {"watch": {"weight": 1}}}}},
            "--settings topk.tasks.watch.weight: weights are common.*--weights",
        ),
        ({"settings": {"topk": {"tasks": 3}}}, "--settings .*got 3"),
        ({"settings": {"topk": {"tasks": {"wacth": {}}}}}, "unknown task 'wacth'"),
        ({"settings": {"topk": {"optim": {"lrr": 1}}}}, "router topk: optim: unknown key 'lrr'"),
        ({"typed": {"model": {"router": {"name": "topk"}}}}, "use --routers"),
        ({"typed": {"tasks": {"wacth": {"weight": 1}}}, "weights": ()}, "unknown task 'wacth'"),
    ],
)
def test_mistakes_are_answered_before_the_first_run(
    prepared: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(replace(ASKED, **change), prepared)


def test_another_plan_is_refused_by_its_difference(prepared: Path, tmp_path: Path) -> None:
    plan = make_plan(ASKED, prepared)
    assert settle(plan, tmp_path) == plan == settle(plan, tmp_path)
    other = replace(ASKED, typed={**TINY, "optim": {"lr": 0.5}})
    expected = r"optim.lr of moesart-0.9_0.1 in .* must stay 0.001, got 0.5.*--set optim.lr=0.001$"
    with pytest.raises(ConfigError, match=expected):
        settle(make_plan(other, prepared), tmp_path)
    with pytest.raises(ConfigError, match="--split .*got val; choose another --out$"):
        settle(make_plan(replace(ASKED, split="val"), prepared), tmp_path)
    with pytest.raises(DataError, match=r"has other data: schema.json differs"):
        settle(replace(plan, files={**plan.files, "schema.json": "other"}), tmp_path)
    later = settle(make_plan(replace(ASKED, seeds=[1, 2]), prepared), tmp_path)
    assert later.seeds == (0, 1, 2)  # the first seed in a configuration is no difference


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.tower_dims", [16, 8]),
        ("optim.weight_decay", 7e-05),
        ("model.biases", False),
        ("trainer.precision", "32-true"),
        ("data.tie_rule", None),
    ],
)
def test_a_shell_gives_back_what_the_remedy_of_a_difference_says(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="choose another --out or add --set") as refused:
        check_settings({setting: value}, {setting: "other"}, "OUT")
    found = dict(flat(parse_set(shlex.split(str(refused.value))[-1])))
    assert found[setting] == value or float(found[setting]) == value


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ConfigError, match="exists and is not a comparison"):
        check_folder(tmp_path, "comparison")
