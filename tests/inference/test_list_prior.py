"""data.list_prior: lists of a log with shown negatives weigh how often an item was shown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from recsys_moe import Predictor, prepare
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.artifact.reading import load_seen
from recsys_moe.config.auto import choices
from recsys_moe.config.settings import parse_config
from recsys_moe.data.streaming import ITEM_ROWS
from recsys_moe.errors import DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.predictor import ColdUser
from recsys_moe.model.request import of_users
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests import logs
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data with the log's own negatives, and a run with a prior of 0.5."""
    folder = tmp_path_factory.mktemp("shown")
    logs.rare_clicks(folder / "log.csv", users=60, items=60)
    task = ["click:binary=clicked", "again:regression=clicked"]
    log = pd.read_csv(folder / "log.csv")
    prepare(log, user="visitor", item="page", tasks=task, out=folder / "data")
    sections = {"model": TINY_MODEL, "data": {"list_prior": 0.5}, "trainer": {"max_epochs": 1}}
    fit(parse_config(sections), folder / "data", folder / "run")
    return folder / "data", folder / "run"


def naive_prior(data: Path) -> torch.Tensor:
    item_N = torch.tensor(pq.read_table(data / "train")["item_index"].to_numpy()).long()
    size = Schema.load(data).item.size
    return 0.5 * torch.tensor([1.0 + int((item_N == item).sum()) for item in range(size)]).log()


def test_a_list_is_by_logit_plus_the_log_of_rows(shown: tuple[Path, Path]) -> None:
    data, run = shown
    predictor = Predictor.load(run)
    ids = predictor.artifact.items["item"].to_pylist()
    found = predictor.recommend(["v1"], k=len(ids))[0]
    scores = predictor.score(["v1"] * len(ids), ids).tasks["click"]
    wanted_N = scores.logit() + naive_prior(data)
    order_N = torch.tensor([one.index for one in found])
    assert (wanted_N[order_N].diff() <= 1e-4).all()
    # What is shown stays the probability.
    shown_N = torch.tensor([one.scores["click"] for one in found])
    assert torch.allclose(shown_N, scores[order_N], atol=1e-6)
    assert not (shown_N.diff() <= 0).all()
    assert predictor.recommend([ColdUser()], k=3)


def test_other_tasks_and_products_have_no_prior(shown: tuple[Path, Path]) -> None:
    predictor = Predictor.load(shown[1])
    for score in ("again", "click*again"):
        found = [one.scores[score] for one in predictor.recommend(["v1"], k=60, score=score)[0]]
        assert found == sorted(found, reverse=True)


def test_evaluation_ranks_as_recommend_does(shown: tuple[Path, Path]) -> None:
    data, run = shown
    predictor, user_U = Predictor.load(run), torch.tensor([0, 3])
    logits_UN = predictor._ranker.grid(
        *(of_users(user_U), torch.arange(predictor.artifact.schema.item.size), 0)
    )
    wanted_UN = logits_UN + naive_prior(data)
    assert torch.allclose(predictor.catalogue_logits(user_U, 0), wanted_UN, atol=1e-6)
    assert torch.equal(
        predictor.catalogue_logits(user_U, 1),
        predictor._ranker.grid(
            of_users(user_U), torch.arange(predictor.artifact.schema.item.size), 1
        ),
    )
    assert evaluate_ranking(run, "val", data)["ndcg"] is not None


def test_counts_are_in_the_folder_only_with_a_prior(
    shown: tuple[Path, Path], tmp_path: Path
) -> None:
    data, run = shown
    rows_N = load_artifact(run).seen[ITEM_ROWS]
    assert int(rows_N.sum()) == Schema.load(data).rows["train"]
    plain = {"model": TINY_MODEL, "trainer": {"max_epochs": 1}}
    fit(parse_config(plain), data, tmp_path / "run")
    assert ITEM_ROWS not in load_artifact(tmp_path / "run").seen
    assert Predictor.load(tmp_path / "run")._top_items.prior_N is None


def test_a_log_with_its_own_negatives_asks_for_it(shown: tuple[Path, Path], prepared: Path) -> None:
    def chosen(data: Path) -> dict[str, object]:
        return {one.key: one.value for one in choices(Schema.load(data), {})}

    assert chosen(shown[0])["data.list_prior"] == 1.0
    assert "data.list_prior" not in chosen(prepared)  # negatives are drawn from all items


def test_counts_that_do_not_fit_the_catalogue_are_refused(
    shown: tuple[Path, Path], tmp_path: Path
) -> None:
    path, schema = tmp_path / "seen.safetensors", Schema.load(shown[0])
    seen = load_artifact(shown[1]).seen
    save_file(seen, path)
    assert load_seen(path, schema).keys() == seen.keys()
    save_file({**seen, ITEM_ROWS: seen[ITEM_ROWS][:-1].contiguous()}, path)
    with pytest.raises(DataError, match="do not match"):
        load_seen(path, schema)
