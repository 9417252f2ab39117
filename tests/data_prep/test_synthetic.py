"""Synthetic data: the shape asked for, the planted structure, and no surprises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from data_prep import synthetic
from recsys_moe.schema import SPLITS, ConfigError
from tests.data_prep.samples import columns, hashes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "out"
    synthetic.prepare(out, users=300, items=200, interactions=12_000, experts=3)
    return out


def arrays(out: Path, name: str) -> dict[str, np.ndarray]:
    return {key: np.array(column) for key, column in columns(out, name).items()}


def test_the_numbers_are_those_asked_for(tmp_path: Path) -> None:
    schema = synthetic.prepare(tmp_path / "out", users=90, items=60, interactions=2000, experts=2)
    positives = sum(schema.labels[split]["watch"]["positive"] for split in SPLITS)
    assert positives == 2000
    assert schema.user.size == 90 and schema.item.size <= 60
    assert schema.command == (
        "prepare synthetic --users 90 --items 60 --interactions 2000 --experts 2 --seed 0"
    )


def test_every_split_has_whole_stars_and_times(made: Path) -> None:
    for split in SPLITS:
        table = columns(made, split)
        assert {rating for rating in table["rating"]} <= {1.0, 2.0, 3.0, 4.0, 5.0, None}
        rated = [rating is not None for rating in table["rating"]]
        assert [watch == 1 for watch in table["watch"]] == rated
        assert None not in table["timestamp"]


def test_popularity_and_activity_have_long_tails(made: Path) -> None:
    train = arrays(made, "train")
    for column in ("user_index", "item_index"):
        counts = np.sort(np.bincount(train[column][train["watch"] == 1]))[::-1]
        assert counts[: len(counts) // 10].sum() > 2 * counts.sum() / 10


def test_the_planted_groups_explain_who_watches_what(made: Path) -> None:
    """An oracle that knows the groups, but not how they were drawn, separates the classes."""
    user_group, item_group = (arrays(made, n)["planted_group"] for n in ("users", "items"))
    train, test = arrays(made, "train"), arrays(made, "test")
    counts = np.ones((2, user_group.max() + 1, item_group.max() + 1))
    by_item = np.ones((2, len(item_group)))
    watch = train["watch"].astype(int)
    user, item = train["user_index"], train["item_index"]
    np.add.at(counts, (watch, user_group[user], item_group[item]), 1)
    np.add.at(by_item, (watch, item), 1)
    affinity, popularity = np.log(counts[1] / counts[0]), np.log(by_item[1] / by_item[0])
    user, item = test["user_index"], test["item_index"]
    alone = roc_auc_score(test["watch"], popularity[item])
    score = popularity[item] + affinity[user_group[user], item_group[item]]
    assert roc_auc_score(test["watch"], score) > max(0.8, alone + 0.03)


def test_ratings_depend_on_the_item(made: Path) -> None:
    train, test = arrays(made, "train"), arrays(made, "test")
    rated, asked = train["watch"] == 1, test["watch"] == 1
    stars, truth = train["rating"][rated].astype(float), test["rating"][asked].astype(float)
    sums = np.bincount(train["item_index"][rated], stars, minlength=200)
    counts = np.bincount(train["item_index"][rated], minlength=200)
    mean = (sums + 5 * stars.mean()) / (counts + 5)
    constant = ((truth - stars.mean()) ** 2).mean()
    assert ((truth - mean[test["item_index"][asked]]) ** 2).mean() < 0.95 * constant


def test_titles_and_genres_name_what_was_planted(made: Path) -> None:
    items = columns(made, "items")
    assert items["title"][:2] == ["Item 0001", "Item 0002"]
    assert items["genres"] == [f"Group {group}" for group in items["planted_group"]]
    assert set(items["planted_group"]) == {0, 1, 2}


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    sizes = {"users": 40, "items": 30, "interactions": 400}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthetic.prepare(tmp_path / name, **sizes, seed=seed)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    assert hashes(tmp_path / "a") != hashes(tmp_path / "c")


@pytest.mark.parametrize("interactions", [3 * 50, 50 * 10], ids=["fewest", "most"])
def test_the_extremes_of_size_work(interactions: int, tmp_path: Path) -> None:
    schema = synthetic.prepare(tmp_path / "out", users=50, items=20, interactions=interactions)
    assert sum(schema.labels[split]["watch"]["positive"] for split in SPLITS) == interactions


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"interactions": 10}, r"--interactions .*got 10"),
        ({"interactions": 500_000}, r"--interactions .*got 500000"),
        ({"experts": 0}, "--experts .*got 0"),
        ({"users": 1}, "--users .*got 1"),
        ({"items": 3}, "--items .*got 3"),
        ({"seed": -5}, "--seed .*got -5"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    sizes: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        synthetic.prepare(tmp_path / "out", **sizes)
    assert list(tmp_path.iterdir()) == []
