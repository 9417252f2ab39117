"""Known ids without a training row are scored and flagged as ids that nobody knows."""

from __future__ import annotations

import pytest
import torch

from data_prep import table
from recsys_moe import Predictor
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import DataError
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="module", params=["none", "items"])
def predictor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Predictor:
    """20 users of 10 items, and 60 users with an item of their own: one row each, of which about
    12 go to the validation and test splits. With and without histories."""
    folder = tmp_path_factory.mktemp(request.param)
    rows = [f"u{n},i{m},{(n + m) % 2}" for n in range(20) for m in range(10)]
    rows += [f"single{n},rare{n},{n % 2}" for n in range(60)]
    (folder / "log.csv").write_text("\n".join(["user,item,click", *rows]) + "\n")
    ids = {"user": "user", "item": "item", "tasks": ("click:binary=click",)}
    table.prepare(folder / "data", input=folder / "log.csv", **ids)
    model = {**TINY_MODEL, "item_bag": request.param, "bag_dim": 4}
    trainer = {"max_epochs": 1, "batch_size": 64}
    fit(parse_config({"model": model, "trainer": trainer}), folder / "data", folder / "run")
    return Predictor.load(folder / "run")


def untrained(predictor: Predictor) -> list[int]:
    trained_U = predictor.artifact.seen["trained_user"]
    return [n for n in range(60) if not trained_U[predictor.users.index([f"single{n}"])[0]]]


def test_they_are_scored_as_unknown_ids_and_say_so(predictor: Predictor) -> None:
    numbers = untrained(predictor)
    assert 5 < len(numbers) < 25
    users, items = [f"single{n}" for n in numbers], [f"rare{n}" for n in numbers]
    found = predictor.score(users, items)
    nobody = predictor.score(["nobody"], ["nothing"])
    torch.testing.assert_close(found.tasks["click"], nobody.tasks["click"].expand(len(numbers)))
    assert found.unseen_user.all() and found.unseen_item.all()
    assert predictor.are_unseen_users([*users, "u1"]) == [True] * len(numbers) + [False]


def test_ids_with_a_row_have_vectors_of_their_own(predictor: Predictor) -> None:
    known = [f"single{n}" for n in range(60) if n not in untrained(predictor)]
    scores = predictor.score(known, ["i1"] * len(known))
    assert not scores.unseen_user.any() and len(scores.tasks["click"].unique()) == len(known)


def test_an_item_without_a_row_is_like_nothing(predictor: Predictor) -> None:
    with pytest.raises(DataError, match="was not seen in training"):
        predictor.similar(f"rare{untrained(predictor)[0]}")


def test_a_folder_that_does_not_say_which_ids_were_trained_has_seen_all(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = predictor.artifact
    for name in artifact.seen.keys() - {"offsets", "items"}:
        monkeypatch.delitem(artifact.seen, name)
    assert artifact.unseen("user").tolist() == [False] * artifact.schema.user.size + [True]
