"""Features, bags and bilinear term: the same on two devices as on one.

Training leaves the item of a row out of its bag, or a random one where it is not in there, and a
random share of each bag. Processes draw for themselves, so every row here has its item in the bag,
and the share is 0.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data_prep.table import prepare
from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.schema import Schema
from recsys_moe.train.encoders import set_encoder_entries
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.features import with_features
from tests.forks import on_two
from tests.train.processes.test_devices import words

HISTORIES = {"item_bag": "ratings", "user_bag": "users", "bag_dim": 4}
PARTS = {"features": "all", **HISTORIES, "bilinear_rank": 3}
MODEL = {**TINY_MODEL, "dropout": 0.0, "router": {"name": "softmax"}}
SECTIONS: dict[str, Any] = {
    "model": {**MODEL, **PARTS, "bag_dropout": 0.0},
    "data": {"id_dropout": 0.0},
    "optim": {"lr": 1e-2, "router_lr_multiplier": 1.0},
}
ENCODERS = [
    *("item_bag.kernel_DW", "item_bag.table_RW"),
    *("user_bag.kernel_DW", "user_bag.table_RW"),
    *("items.table_RD", "users.table_RD"),
]


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared ratings of 60 users and 40 items, and nothing but ratings."""
    folder, draw = tmp_path_factory.mktemp("rated"), random.Random(0)
    pairs = [divmod(n, 40) for n in sorted(draw.sample(range(2400), 900))]
    lines = [
        f"{user},{item},{1 + (user * item + draw.random() // 0.8) % 5}" for user, item in pairs
    ]
    (folder / "log.csv").write_text("\n".join(["user,item,stars", *lines]) + "\n")
    columns: dict[str, Any] = {"user": "user", "item": "item", "input": folder / "log.csv"}
    prepare(folder / "plain", tasks=["rating:regression=stars"], **columns)
    return with_features(folder / "plain", folder / "data")


def sections(epochs: int, model: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    trainer = {"max_epochs": epochs, "batch_size": 64, "patience": 1000}
    own = {"model": model or SECTIONS["model"], "data": {**SECTIONS["data"], **data}}
    return {**SECTIONS, **own, "trainer": trainer}


def fit_on_two(data: Path, out: Path, asked: dict[str, Any], *more: object) -> None:
    args = words(data, out, asked["trainer"]["max_epochs"], *map(str, more))
    out.with_suffix(".yaml").write_text(parse_config(asked).to_yaml())
    done = on_two(args, out.with_name(f"{out.name}-log"))
    assert done.returncode == 0, done.stderr


def alike(one: Path, other: Path, file: str) -> list[str]:
    """Names of the weights, which are the same within rounding, and none of them 0."""
    wanted, found = (load_file(run / "model" / file) for run in (one, other))
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        torch.testing.assert_close(found[name], values, atol=1e-5, rtol=0, msg=name)
        assert values.abs().max() > 1e-3, name
    return sorted(wanted)


@pytest.mark.slow
def test_two_devices_end_with_the_weights_of_one(rated: Path, tmp_path: Path) -> None:
    asked = sections(3, {**SECTIONS["model"], "bag_ratings": "linear"})
    fit(asked, rated, tmp_path / "one")
    fit_on_two(rated, tmp_path / "two", asked)
    all_alike(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_two_devices_go_on_to_the_weights_of_one(rated: Path, tmp_path: Path) -> None:
    """From a run of three epochs, two more."""
    fit(sections(3), rated, tmp_path / "first")
    fit(sections(2), rated, tmp_path / "one", init_from=tmp_path / "first")
    fit_on_two(rated, tmp_path / "two", sections(2), "--init-from", tmp_path / "first")
    all_alike(tmp_path / "one", tmp_path / "two")


def all_alike(one: Path, other: Path) -> None:
    alike(one, other, "weights.safetensors")
    assert alike(one, other, "encoders.safetensors") == sorted(ENCODERS)


def test_rows_on_disk_make_the_encoders_of_rows_in_memory(rated: Path) -> None:
    schema, config = Schema.load(rated), parse_config(SECTIONS)
    made = []
    for rows in (load_columns(rated, schema, "train"), StoredColumns(rated, schema, "train")):
        module = RecModule(config.model_dump(mode="json"), schema.to_json())
        set_encoder_entries(module.model.encoders, config, schema, folder=rated, rows=rows)
        made.append(dict(module.model.encoders.named_buffers()))  # type: ignore[union-attr]
    assert len(made[0]) == 12  # what each of the four has for its entries
    assert all(torch.equal(values, made[1][name]) for name, values in made[0].items())


def test_a_streamed_run_learns_as_one_in_memory(rated: Path, tmp_path: Path) -> None:
    """In another order of rows, so not to the same weights."""
    whole = fit(sections(4), rated, tmp_path / "whole")
    streamed = fit(sections(4, shuffle_buffer=320), rated, tmp_path / "streamed")
    assert streamed["loss"] == pytest.approx(whole["loss"], rel=0.1)
    more = fit(
        sections(1, shuffle_buffer=320), rated, tmp_path / "more", init_from=tmp_path / "whole"
    )
    assert more["loss"] == pytest.approx(whole["loss"], rel=0.1)
