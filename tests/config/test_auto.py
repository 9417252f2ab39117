"""Automatic settings: what the recipes have, by the data; what is given stays."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.cli.configuration import resolve
from recsys_moe.config.auto import KEYS, choices, with_choices
from recsys_moe.config.diff import differences, flat, read_resolved
from recsys_moe.config.files import nested
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.routers import ROUTERS
from recsys_moe.schema import Feature, FeatureColumn, Schema, Task
from tests.conftest import TINY_MODEL, Command

WATCH = {"labelled": 0, "mean": 0.5, "positive": 0}
RATING = {"labelled": 0, "mean": 3.5, "std": 1.1, "min": 1.0, "max": 5.0}


def schema_of(
    rows: int = 157_500,
    users: int = 943,
    items: int = 1682,
    *,
    tasks: tuple[str, ...] = ("binary", "regression"),
    negatives: Any = "uniform",
    rating: dict[str, float] = RATING,
) -> Schema:
    """By default the sizes of MovieLens-100K. Half of the rows are positive, or rated."""
    counts = {
        "binary": {**WATCH, "labelled": rows, "positive": rows // 2},
        "regression": {**rating, "labelled": rows // 2},
    }
    return Schema(
        name="log",
        protocol="paper",
        vocabulary="all",
        user=Feature(name="user", column="user_index", size=users, id_type="int64"),
        item=Feature(name="item", column="item_index", size=items, id_type="int64"),
        tasks=tuple(Task(name=f"t{n}", kind=kind, column=kind) for n, kind in enumerate(tasks)),  # type: ignore[arg-type]
        rows={"train": rows, "val": 10, "test": 10},
        labels={"train": {f"t{n}": counts[kind] for n, kind in enumerate(tasks)}},
        negatives=negatives,
    )


def chosen(schema: Schema, **typed: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for key, value in typed.items():
        raw = {**raw, **nested(key.replace("__", "."), value)}
    return {one.key: one.value for one in choices(schema, raw)}


@pytest.mark.parametrize(
    ("sizes", "recipe"),
    [
        ((157_500, 943, 1682), "movielens_100k_best"),
        ((1_574_602, 6040, 3706), "movielens_1m_best"),
    ],
)
def test_the_sizes_of_a_recipe_give_the_recipe(sizes: tuple[int, int, int], recipe: str) -> None:
    """But for the task weights, which the data have, and the precision, which the processor does:
    so its measured results are the defaults'."""
    raw, _ = with_choices({}, schema_of(*sizes), everything=True)
    found = parse_config(raw).model_dump(mode="json")
    other = {*differences(found, read_resolved(recipe))} - {"trainer.precision"}
    assert {key.split(".")[0] for key in other} == {"tasks"}


@pytest.mark.parametrize(
    ("is_fast", "given", "expected"),
    [
        (True, {}, "bf16-mixed"),
        (True, {"trainer__accelerator": "cpu"}, "bf16-mixed"),
        (True, {"trainer__accelerator": "gpu"}, "32-true"),
        (True, {"trainer__precision": "64-true"}, None),
        (True, {"model__name": "recsys_moe.model.two_tower:TwoTower"}, "32-true"),
        (False, {}, "32-true"),
    ],
)
def test_a_processor_that_multiplies_bfloat16_does_so(
    is_fast: bool, given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on a GPU, not in a model of somebody else, and not for few rows."""
    monkeypatch.setattr("recsys_moe.machine.has_fast_bf16", lambda: is_fast)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert chosen(schema_of(), **given).get("trainer.precision") == expected
    assert chosen(schema_of(29_999), **given).get("trainer.precision") in ("32-true", None)


def test_a_gpu_that_is_taken_by_itself_keeps_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys_moe.machine.has_fast_bf16", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert chosen(schema_of())["trainer.precision"] == "32-true"
    assert chosen(schema_of(), trainer__accelerator="cpu")["trainer.precision"] == "bf16-mixed"


def test_every_choice_may_be_auto_and_says_why() -> None:
    for schema in (schema_of(), schema_of(3000), schema_of(negatives=None)):
        made = choices(schema, {})
        assert {one.key for one in made} <= KEYS
        assert all(one.why and "\n" not in str(one) for one in made)
        assert len({one.key for one in made}) == len(made)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "two_tower", "num_experts": "auto"},
        {"router": {"name": "softmax", "k": "auto"}},
    ],
)
def test_auto_of_a_setting_that_is_none_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a setting of the model or router, got auto"):
        with_choices({"model": model}, schema_of(), everything=False)


def test_without_drawn_negatives_none_are_drawn_anew() -> None:
    found = chosen(schema_of(negatives=None))
    assert [key for key in found if key.startswith("data.")] == ["data.list_prior"]
    assert not [key for key in chosen(schema_of(negatives="popularity")) if "resample" in key]


def test_without_ratings_bags_have_none() -> None:
    found = chosen(schema_of(tasks=("binary",)))
    assert (found["model.item_bag"], found["model.user_bag"]) == ("items", "users")
    assert "model.bag_ratings" not in found


@pytest.mark.parametrize(
    ("schema", "is_fitted"),
    [
        (schema_of(), False),  # 78,750 positives of 943 + 1,682 ids: 30 each
        (schema_of(users=20_000, items=10_000), True),  # 78,750 of 30,000: 2.6 each
        (schema_of(rating={**RATING, "mean": 120.0, "std": 300.0}), True),  # seconds
        (schema_of(rating={**RATING, "mean": 7.6, "std": 1.8}), True),  # 1 to 10
        (schema_of(tasks=("binary",)), False),
    ],
)
def test_fitted_means_are_for_sparse_logs_and_unusual_labels(
    schema: Schema, is_fitted: bool
) -> None:
    assert chosen(schema)["model.biases"] is is_fitted


def test_decay_falls_and_batches_grow_with_the_rows() -> None:
    """7e-5 (157,500 / 15,750)^.85 = 4.96e-4, and 157,500 / 64 / 10 = 246 is next to 256."""
    small, usual = chosen(schema_of(15_750)), chosen(schema_of())
    assert (small["optim.weight_decay"], usual["optim.weight_decay"]) == (5e-4, 7e-5)
    assert (small["trainer.batch_size"], usual["trainer.batch_size"]) == (256, 2048)
    # 4e-3 (256 / 2048)^.5 = 1.414e-3
    assert small["optim.lr"] == pytest.approx(1.414e-3, rel=5e-3)


def test_a_large_log_has_tables_that_fit_and_batches_that_move_them() -> None:
    """1,500,000 ids: 4 GiB / (3 x 5 x 4 bytes x 1,500,000) = 47.7, so 32; 1,500,000 / 64 = 23,437,
    and 2^15 is next to it on the scale of logarithms."""
    large = chosen(schema_of(80_000_000, 1_000_000, 500_000))
    assert large["model.embedding_dim"] == large["model.bilinear_rank"] == 32
    assert large["trainer.batch_size"] == 32768
    few_ids = chosen(schema_of(20_000_000, 70_000, 10_000))
    assert (few_ids["model.embedding_dim"], few_ids["trainer.batch_size"]) == (128, 2048)
    most = chosen(schema_of(100_000_000, 90_000_000, 10_000_000))
    assert most["trainer.batch_size"] == 65536  # not 10^8 / 64, whose activations fill any memory


def test_what_is_given_stays_and_what_depends_on_it_follows() -> None:
    schema = schema_of()
    narrow = chosen(schema, model__embedding_dim=32)
    assert "model.embedding_dim" not in narrow and narrow["model.bilinear_rank"] == 32
    assert "model.bilinear_diagonal" not in chosen(schema, model__bilinear_rank=0)
    kept = chosen(schema, data__resample_negatives=False)
    assert not [key for key in kept if key.startswith("data.")]
    assert (
        chosen(
            schema,
            model__num_experts=1,
        )["model.router.k"]
        == 1
    )
    assert "trainer.max_epochs" not in chosen(schema, optim__schedule="constant")
    other = chosen(schema, model__router="topk")
    assert other["model.router.k"] == 2 and "model.router.temperature" not in other
    assert chosen(schema_of(), trainer__devices=3)["trainer.batch_size"] == 2049  # 3 * 683


def test_another_model_has_what_all_models_have() -> None:
    raw, made = with_choices({"model": {"name": "two_tower"}}, schema_of(), everything=True)
    keys = {one.key for one in made}
    assert {"model.item_bag", "model.embedding_dim", "optim.weight_decay"} <= keys
    assert not keys & {"model.router.name", "model.num_experts", "model.bilinear_rank"}
    parse_config(raw)


def test_a_file_stays_but_for_what_it_calls_auto(tmp_path: Path) -> None:
    schema, raw = schema_of(), {"optim": {"lr": 0.5, "weight_decay": "auto"}}
    found, made = with_choices(raw, schema, everything=False)
    assert found["optim"] == {"lr": 0.5, "weight_decay": 7e-5}
    assert [one.key for one in made] == ["optim.weight_decay"]
    assert with_choices({"optim": {"lr": 0.5}}, schema, everything=False)[0] == {
        "optim": {"lr": 0.5}
    }


def test_auto_where_the_data_decide_nothing_is_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raw = {"data": {"popularity_exponent": "auto", "id_dropout": 0.1}, "optim": {"lr": "auto"}}
    caplog.set_level("INFO")
    found, made = with_choices(raw, schema_of(negatives=None), everything=False)
    assert found["data"] == {"id_dropout": 0.1} and [one.key for one in made] == ["optim.lr"]
    assert "data.popularity_exponent=auto: nothing to choose" in caplog.text
    assert raw["data"]["popularity_exponent"] == "auto"


@pytest.mark.parametrize(
    "wrong",
    [
        {"trainer": {"batch_size": "many"}},
        {"trainer": {"batch_size": 0}},
        {"trainer": {"devices": "x"}},
        {"model": {"router": "topkk"}},
    ],
)
def test_a_given_mistake_has_its_own_message(wrong: dict[str, Any]) -> None:
    key = next(key for key, _ in flat(wrong))
    with pytest.raises(ConfigError, match=rf"^{key}"):
        raw, _ = with_choices(wrong, schema_of(), everything=True)
        parse_config(raw)


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.sampled_from([("binary",), ("regression",), ("binary", "regression", "binary")]),
    st.sampled_from([None, "uniform", "popularity"]),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(1, 8),
)
def test_the_choices_for_any_log_are_a_valid_configuration(
    rows: int, users: int, items: int, tasks: Any, negatives: Any, router: str, devices: int
) -> None:
    schema = schema_of(rows, users, items, tasks=tasks, negatives=negatives)
    given = {"model": {"router": {"name": router}}, "trainer": {"devices": devices}}
    for raw in ({}, given):
        parse_config(with_choices(raw, schema, everything=True)[0])


def test_the_defaults_of_the_configuration_do_not_move() -> None:
    """A file that leaves a setting out gets what it got before."""
    config = Config()
    assert (config.optim.lr, config.optim.weight_decay, config.trainer.batch_size) == (1e-3, 0, 512)
    assert (config.model.item_bag, config.data.resample_negatives) == ("none", False)


def test_explain_lists_each_choice_with_its_reason(prepared: Path, command: Command) -> None:
    lines = command("config", "explain", "--data", prepared).out.splitlines()
    rows = Schema.load(prepared).rows["train"]
    assert f"optim.weight_decay={chosen(Schema.load(prepared))['optim.weight_decay']}: " in "".join(
        line for line in lines if f"{rows:,} rows" in line and "weight_decay" in line
    )
    found = json.loads(command("config", "explain", "--data", prepared, "--json").out)
    assert [f"{one['key']}=" for one in found] == [line.partition("=")[0] + "=" for line in lines]
    assert all(set(one) == {"key", "value", "why"} for one in found)


def test_fit_without_a_file_trains_what_suits_the_data_and_tells(
    prepared: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    sets = [f"model.{key}={value}" for key, value in TINY_MODEL.items()]
    words = [word for one in [*sets, "trainer.max_epochs=1"] for word in ("--set", one)]
    caplog.set_level(logging.INFO, "recsys_moe.fit")
    done = command("fit", "--data", prepared, "--out", tmp_path / "run", *words)
    assert done.exit_code == 0, done.err
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    found = dict(flat(written))
    wanted = chosen(Schema.load(prepared), model=TINY_MODEL)
    assert {key: found[key] for key in wanted} | {"trainer.max_epochs": 24} == {
        **wanted,
        "model.bilinear_rank": 8,
    }
    told = [line for line in caplog.messages if line.startswith("  ")]
    assert [line.strip().partition("=")[0] for line in told] == [
        *("model.item_bag", "data.resample_negatives", "optim.weight_decay")
    ]
    # A continued run has its own settings, whatever is chosen for new ones.
    again = command("fit", "--data", prepared, "--out", tmp_path / "run", "--resume", "auto")
    assert again.exit_code == 0, again.err


def test_a_configuration_file_is_not_filled_from_the_data(prepared: Path) -> None:
    config = resolve("quickstart", None, {}, [], data=prepared)
    assert config == resolve("quickstart", None, {}, [])
    assert resolve(None, None, {}, [], data=prepared) != resolve(None, None, {}, [])


def test_context_features_that_a_model_can_read_are_read() -> None:
    features = (
        FeatureColumn(name="device", kind="categorical", size=3),
        FeatureColumn(name="tags", kind="multi", size=3),
        FeatureColumn(name="wait", kind="numeric"),
    )
    schema = replace(schema_of(), context_features=features)
    assert chosen(schema)["model.context"] == ("device", "wait")
    assert "model.context" not in chosen(schema_of())
    parse_config(with_choices({}, schema, everything=True)[0])


@pytest.mark.parametrize("kind", ["count", "duration"])
def test_means_are_fitted_for_counts_and_durations(kind: str) -> None:
    schema = schema_of(tasks=("binary",))
    task = Task(name="seconds", kind=kind, column="seconds")  # type: ignore[arg-type]
    assert chosen(schema)["model.biases"] is False
    assert chosen(replace(schema, tasks=(*schema.tasks, task)))["model.biases"] is True
