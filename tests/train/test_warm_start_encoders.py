"""Warm start with features and bags: scores of known pairs stay, new ids are cold-start ids."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_prep.table import prepare
from recsys_moe import Predictor
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.data.entries import matched_levels
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.predictor import ColdUser
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.train.test_warm_start import (
    ITEMS,
    KNOWN_USERS,
    NEW_ITEMS,
    NEW_USERS,
    STILL,
    TASKS,
    USERS,
    close,
    known_scores,
    once,
    scores,
    settings,
    table,
)

BOTH = {"features": "all", "item_bag": "ratings", "user_bag": "ratings", "bag_dim": 4}
SLOPED = {**BOTH, "bag_ratings": "linear"}
WATCHED = {**BOTH, "item_bag": "items", "user_bag": "users"}
ALONE = {**BOTH, "user_bag": "none", "biases": False}
USER_FEATURES = ("age:numeric=age", "job:categorical=job")
ITEM_FEATURES = ("genres:multi=genres:sep=|", "year:numeric=year")


def given_of_user(n: int) -> dict[str, Any]:
    """Every seventh nothing; `actor`, whose index is before all others, from user 50 on."""
    return {} if n % 7 == 0 else {"age": 20 + n, "job": "actor" if n >= 50 else f"job {n % 3}"}


def given_of_item(n: int) -> dict[str, Any]:
    if n % 7 == 0:
        return {}
    genres = sorted({f"genre {n % 4}", "epic" if n >= 40 else f"genre {n % 3}"})
    return {"genres": "|".join(genres), "year": 1950 + n}


def featured(
    folder: Path,
    users: tuple[int, int],
    items: tuple[int, int],
    *,
    unit: float = 1.0,
    **changed: tuple[str, ...],
) -> Path:
    """The rows of `tests.train.test_warm_start.table` with features."""
    table(folder, users, items, unit=unit)
    for entity, (first, last), told in (
        ("user", users, given_of_user),
        ("item", items, given_of_item),
    ):
        names = [*told(1)]
        cells = [[entity[0] + str(n), *(told(n).get(m, "") for m in names)] for n in range(60)]
        lines = [",".join(map(str, row)) for row in cells[first:last]]
        (folder / f"{entity}s.csv").write_text(
            "\n".join([",".join([entity, *names]), *lines]) + "\n"
        )
    asked = {"user_feature": USER_FEATURES, "item_feature": ITEM_FEATURES, **changed}
    files = {f"{entity}_features": folder / f"{entity}s.csv" for entity in ("user", "item")}
    files = {name: file for name, file in files.items() if asked[name[:-1]]}
    columns = {"user": "user", "item": "item", "tasks": TASKS, "input": folder / "log.csv"}
    prepare(folder / "featured", **columns, **files, **asked)  # type: ignore[arg-type]
    return folder / "featured"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old` and `new` data, and `same`, in which new users meet old items; runs on the old."""
    folder = tmp_path_factory.mktemp("lifecycle")
    featured(folder / "new", NEW_USERS, NEW_ITEMS)
    featured(folder / "same", NEW_USERS, (10, 30))
    data = featured(folder / "old", USERS, ITEMS)
    for name, model in (
        ("both", BOTH),
        ("sloped", SLOPED),
        ("alone", ALONE),
        ("ids", {}),
        ("watched", WATCHED),
    ):
        fit(settings(model=model, optim={"lr": 1e-2}), data, folder / name)
    return folder


def row(artifact: Artifact, entity: str, name: str, category: str) -> int:
    """Of the table of features; the first feature of a entity begins at 0."""
    found = [
        one["index"]
        for one in artifact.categories.to_pylist()
        if (one["side"], one["feature"], one["value"]) == (entity, name, category)
    ]
    assert getattr(artifact.schema, f"{entity}_features")[0].name == name
    return int(found[0])


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ("both", {}),
        ("both", {"features": "none"}),
        ("both", {"item_bag": "none"}),
        ("both", {"user_bag": "none"}),
        ("both", {"features": "none", "item_bag": "none", "user_bag": "none"}),
        ("both", {"features": "job,year", "bag_dropout": 0.3}),
        ("sloped", {}),
        ("sloped", {"item_bag": "none"}),
        ("sloped", {"item_bag": "none", "user_bag": "none", "bag_ratings": "levels"}),
        ("ids", {"features": "all"}),
        ("ids", {"item_bag": "items", "bag_dim": 4}),
        ("watched", {"bag_ratings": "linear", "bag_levels": 3}),
        ("ids", {"user_bag": "users", "bag_dim": 4}),
        ("alone", {"user_bag": "ratings"}),
        ("ids", {"features": "genres", "item_bag": "ratings", "bag_levels": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "as it was",
)
def test_scores_of_known_pairs_stay_whatever_is_switched_on_or_off(
    folder: Path, tmp_path: Path, before: str, asked: dict[str, Any]
) -> None:
    """In data where the scale of the numbers, the categories and the histories are others."""
    data = folder / "new/featured"
    fit(once(model=asked, **STILL), data, tmp_path / "b", init_from=folder / before)
    found, wanted = known_scores(tmp_path / "b"), known_scores(folder / before)
    close(found, wanted)
    assert wanted.std(1).min() > 0.005


@pytest.mark.parametrize("history", ["items", "ratings"])
def test_scores_of_a_bilinear_term_stay_too(folder: Path, tmp_path: Path, history: str) -> None:
    model = {**BOTH, "item_bag": history, "bilinear_rank": 3}
    fit(settings(model=model, optim={"lr": 1e-2}), folder / "old/featured", tmp_path / "a")
    fit(once(**STILL), folder / "new/featured", tmp_path / "b", init_from=tmp_path / "a")
    close(known_scores(tmp_path / "b"), known_scores(tmp_path / "a"))
    assert load_artifact(tmp_path / "a").model.bilinear.alone_TD.abs().max() > 1e-3  # type: ignore


def test_new_ids_start_as_cold_start_ids(folder: Path, tmp_path: Path) -> None:
    """With the features they have, of which `actor` was unknown, and the history in their rows."""
    fit(once(**STILL), folder / "same/featured", tmp_path / "b", init_from=folder / "alone")
    old, new = Predictor.load(folder / "alone"), Predictor.load(tmp_path / "b")
    data = new.artifact.seen
    ids = new.items.ids.to_pylist()
    items = [f"i{n}" for n in range(10, 30)]
    for n in (41, 45, 49, 53):  # 49 has no features
        [user] = new.users.index([f"u{n}"])[0].tolist()
        watched = data["items"][data["offsets"][user] : data["offsets"][user + 1]].tolist()
        stars = {ids[i]: 1 + (n * int(ids[i][1:])) % 5 for i in watched}
        cold_user = ColdUser(given_of_user(n), stars)
        wanted = old.score([cold_user] * len(items), items).tasks
        found = new.score([f"u{n}"] * len(items), items).tasks
        close(torch.stack([*found.values()]), torch.stack([*wanted.values()]))


def test_new_items_start_from_their_features_too(folder: Path, tmp_path: Path) -> None:
    fit(once(**STILL), folder / "new/featured", tmp_path / "b", init_from=folder / "alone")
    old = Predictor.load(folder / "alone")
    for n in (31, 41, 42):
        item = ColdUser(given_of_item(n))
        wanted = old.score(KNOWN_USERS, [item] * len(KNOWN_USERS)).tasks
        close(scores(tmp_path / "b", KNOWN_USERS, [f"i{n}"]), torch.stack([*wanted.values()]))
    nobody = old.score(["nobody"], ["nothing"]).tasks
    close(scores(tmp_path / "b", ["nobody"], ["nothing"]), torch.stack([*nobody.values()]))


def test_categories_keep_their_vectors_and_new_ones_begin_at_0(
    folder: Path, tmp_path: Path
) -> None:
    fit(once(**STILL), folder / "new/featured", tmp_path / "b", init_from=folder / "both")
    old, new = load_artifact(folder / "both"), load_artifact(tmp_path / "b")

    def vector(artifact: Artifact, category: str) -> Tensor:
        index = row(artifact, "item", "genres", category)
        return artifact.encoders["items.table_RD"][index]

    assert row(new, "item", "genres", "genre 1") == 1 + row(old, "item", "genres", "genre 1")
    assert torch.equal(vector(new, "genre 1"), vector(old, "genre 1"))
    assert vector(old, "genre 1").abs().max() > 1e-3
    assert vector(new, "epic").abs().max() < 1e-20  # a step of 1e-30 has been made


def test_a_number_is_worth_as_much_in_another_scale(folder: Path, tmp_path: Path) -> None:
    """Age is the first feature of users, and the first row of their table."""
    fit(once(**STILL), folder / "new/featured", tmp_path / "b", init_from=folder / "both")
    old, new = load_artifact(folder / "both"), load_artifact(tmp_path / "b")
    per_year = [
        one.encoders["users.table_RD"][0] / one.schema.user_features[0].std for one in (old, new)
    ]
    assert old.schema.user_features[0].std != new.schema.user_features[0].std
    close(*per_year)


def test_levels_are_matched_by_their_ratings(folder: Path) -> None:
    """Five levels from 1 to 5 before; from 3 to 5 now: 3, 3.5, 4, 4.5, 5 (halves go to even)."""
    old = Schema.load(folder / "old/featured")
    labels = {"train": {**old.labels["train"], "rating": {"min": 3.0, "max": 5.0}}}
    new = replace(old, labels=labels)
    assert matched_levels(old, new, 5).tolist() == [2, 2, 3, 4, 4, 5]  # the last: without a rating
    assert matched_levels(old, old, 5).tolist() == [0, 1, 2, 3, 4, 5]
    assert matched_levels(new, old, 5).tolist() == [0, 0, 0, 2, 4, 5]  # 1, 2 are below, 4 between
    wide = {"train": {**old.labels["train"], "rating": {"min": 1.0, "max": 9.0}}}
    assert matched_levels(old, replace(old, labels=wide), 5).tolist() == [0, 2, 4, 4, 4, 5]


@pytest.mark.parametrize("unit", [1.0, 1.25])
def test_bags_with_linear_ratings_continue(folder: Path, tmp_path: Path, unit: float) -> None:
    """What a rating of a known item says is what it said, though the mean is another: 1 to 5, and
    1.25 to 6.25, between and beyond the old levels."""
    data = featured(tmp_path / "new", NEW_USERS, NEW_ITEMS, unit=unit)
    fit(once(**STILL), data, tmp_path / "b", init_from=folder / "sloped")
    old, new = load_artifact(folder / "sloped"), load_artifact(tmp_path / "b")
    was, now = (one.encoders["item_bag.table_RW"].unflatten(0, (6, -1)) for one in (old, new))
    place = {item: n for n, item in enumerate(old.items["item"].to_pylist())}
    pairs = [
        (place[item], n) for n, item in enumerate(new.items["item"].to_pylist()) if item in place
    ]
    before, after = (list(column) for column in zip(*pairs, strict=True))
    line_L11 = (unit * torch.arange(1, 6) - 1)[:, None, None] / 4  # from 1 to 5
    close(now[:5, after], torch.lerp(was[0, before], was[4, before], line_L11))
    assert was[:5, before].std(0).max() > 1e-3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"item_bag": "items"}, "model.item_bag .*got items"),
        ({"user_bag": "users"}, "model.user_bag .*got us"),
        ({"bag_dim": 8}, "model.bag_dim .*got 8"),
        ({"bag_levels": 3}, "model.bag_levels .*got 3"),
        ({"bag_ratings": "linear"}, "model.bag_ratings .*got linear"),
    ],
)
def test_another_kind_of_bag_is_refused(
    folder: Path, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        fit({"model": asked}, folder / "new/featured", tmp_path / "b", init_from=folder / "both")
    assert not [*tmp_path.iterdir()]


def test_a_feature_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    changed = ("age:categorical=age", "job:categorical=job")
    data = featured(tmp_path / "data", NEW_USERS, NEW_ITEMS, user_feature=changed)
    with pytest.raises(DataError, match=r"both: feature .*must be numeric.*got categor"):
        fit({}, data, tmp_path / "b", init_from=folder / "both")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, r"features\.parquet .*4 .*'job', got 0; prepare"),
        (lambda file: file.write_bytes(b"PAR1"), r"features\.parquet cannot be read as Parquet"),
    ],
    ids=["missing", "damaged"],
)
def test_data_without_readable_categories_are_refused(
    folder: Path, tmp_path: Path, harm: Any, said: str
) -> None:
    data = shutil.copytree(folder / "new/featured", tmp_path / "data")
    harm(data / "features.parquet")
    with pytest.raises(DataError, match=f"--init-from .*both: .*{said}"):
        fit({}, data, tmp_path / "b", init_from=folder / "both")
    assert not (tmp_path / "b").exists()
