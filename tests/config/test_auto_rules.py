"""Automatic settings follow rows, labels and batches."""

from __future__ import annotations

import pytest

from recsys_moe.config.auto import choices
from tests.config.test_auto import RATING, chosen, schema_of


def test_users_without_ids_have_no_biases() -> None:
    sparse = schema_of(20_000, 9000, 3000)
    assert chosen(sparse)["model.biases"] is True
    assert chosen(sparse, model__user_ids=False)["model.biases"] is False


def test_few_rows_get_a_small_dense_model_and_more_a_sampled_one() -> None:
    names = ("router.name", "num_experts", "embedding_dim", "expert_dim", "tower_dims")
    few, more = (chosen(schema_of(rows)) for rows in (29_999, 30_000))
    assert [few[f"model.{name}"] for name in names] == ["softmax", 4, 64, 64, [64]]
    assert [more[f"model.{name}"] for name in names] == ["moesart", 16, 128, 256, [256]]


@pytest.mark.parametrize(
    ("mean", "std", "needed"),
    [(3.5, 1.1, False), (0.5, 0.3, True), (3.5, 2.1, True), (6.5, 1.1, True), (6.0, 0.0, False)],
)
def test_labels_far_from_0_and_1_get_fitted_means(mean: float, std: float, needed: bool) -> None:
    rating = {**RATING, "mean": mean, "std": std}
    assert chosen(schema_of(rating=rating))["model.biases"] is needed


def test_the_rate_follows_the_root_of_the_batch_up_to_2048() -> None:
    rates = [chosen(schema_of(), trainer__batch_size=n)["optim.lr"] for n in (512, 2048, 65_536)]
    assert rates == [0.002, 0.004, 0.004]


def test_of_several_ratings_the_one_in_the_bags_is_named() -> None:
    reasons = {}
    for kinds in (("regression",), ("regression", "binary", "regression")):
        made = choices(schema_of(tasks=kinds), {})
        (reasons[kinds],) = [one.why for one in made if one.key == "model.item_bag"]
    one, three = reasons.values()
    assert "first" not in one and three.endswith("those of t0, the first --task with ratings")
