"""Scores of many pairs from precomputed of users and items equal those of a forward pass.

Axes: B pairs, T tasks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from recsys_moe.inference.files import predict as score_files
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.scoring import pair_scores
from recsys_moe.inference.threads import in_turn
from recsys_moe.kinds import Constant
from recsys_moe.model import precomputed
from recsys_moe.model.biases import Biases
from recsys_moe.model.bilinear import DiagonalTerm, ProjectedTerm
from recsys_moe.model.precomputed import Precomputed
from recsys_moe.model.request import Request
from tests.inference.test_catalogue import ITEMS, SEED, SETTINGS, USERS, model_with, naive


def some_pairs(count: int) -> tuple[Tensor, Tensor]:
    """By chance; unseen users and items among them."""
    draw = torch.Generator().manual_seed(1)
    users, items = ((USERS + 1, count), (ITEMS + 1, count))
    return tuple(torch.randint(0, most, (n,), generator=draw) for most, n in (users, items))  # type: ignore[return-value]


@pytest.mark.parametrize("entries", [1, 7, 1 << 12])
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_logits_equal_the_naive_twin_for_every_router(
    name: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precomputed, "ENTRIES_AT_ONCE", entries)
    model, pairs = model_with(SETTINGS[name]), some_pairs(40)
    expected_BT = naive(model, *pairs)
    model.reseed(SEED)
    torch.testing.assert_close(
        Precomputed(model).logits(Request(*pairs)), expected_BT, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", [ProjectedTerm, DiagonalTerm])
def test_the_bilinear_term_and_the_biases_are_added(
    kind: type[ProjectedTerm | DiagonalTerm],
) -> None:
    model, pairs = model_with(SETTINGS["moesart"]), some_pairs(40)
    model.bilinear = kind(2, 4, 3)
    for parameter in model.bilinear.parameters():
        torch.nn.init.normal_(parameter)
    model.biases = Biases(USERS, ITEMS, [Constant(0.3, 1.0, 1.0), Constant(3.5, 0.5, 1.0)])
    torch.nn.init.normal_(model.biases.user_UT)
    with torch.inference_mode():
        expected_BT = model(Request(*pairs)).logits_BT
    torch.testing.assert_close(
        Precomputed(model).logits(Request(*pairs)), expected_BT, rtol=1e-5, atol=1e-5
    )


def test_only_experts_that_pairs_visit_are_computed_and_once_by_many_threads() -> None:
    model = model_with(SETTINGS["moesart"], experts=8)
    with torch.no_grad():
        for router in model.routers:
            router.gate.weight.zero_()  # type: ignore[operator,union-attr]
            router.gate.bias.copy_(torch.tensor([0.0, 9, 0, 0, 8, 0, 0, 0]))  # type: ignore[operator,union-attr]
    of_pairs = Precomputed(model)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: of_pairs.logits(Request(*some_pairs(30))), range(8))]
    assert [n for n, filled in enumerate(of_pairs._is_filled) if filled] == [1, 4]
    assert all(torch.equal(found[0], again) for again in found)


def test_pairs_for_which_no_task_chooses_an_expert_have_the_logits_of_an_empty_mixture() -> None:
    model, pairs = model_with(SETTINGS["relu"]), some_pairs(9)
    with torch.no_grad():
        for router in model.routers:
            router.gate.weight.zero_()  # type: ignore[operator,union-attr]
            router.gate.bias.fill_(-1)  # type: ignore[operator,union-attr]
    found_BT = Precomputed(model).logits(Request(*pairs))
    with torch.inference_mode():
        expected_T = torch.cat([tower(torch.zeros(6)) for tower in model.towers])
    torch.testing.assert_close(found_BT, expected_T.expand(9, 2))


def test_a_table_beyond_the_limit_is_not_made() -> None:
    """4 experts x (8 users + 24 items) x 6 x 4 bytes = 3,072."""
    model = model_with(SETTINGS["moesart"])
    assert Precomputed(model, 3072 / 2**20).fits
    assert (
        not (beyond := Precomputed(model, 3071 / 2**20)).fits
        and not beyond._precomputed_ERH.numel()
    )


def test_a_file_of_many_pairs_has_the_scores_of_few_at_a_time(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, source = Predictor.load(run), tmp_path / "pairs.parquet"
    pairs = {"user": [n % 61 for n in range(500)], "item": [n % 43 for n in range(500)]}
    pd.DataFrame(pairs).to_parquet(source)
    predict_file(predictor, source, tmp_path / "few.parquet")
    assert not any(predictor._ranker._of_pairs._is_filled)
    monkeypatch.setattr(pair_scores, "ROWS_PER_BATCH", 64)
    monkeypatch.setattr(score_files, "ROWS_PER_PIECE", 64)
    many = Predictor.load(run)
    counts = predict_file(many, source, tmp_path / "many.parquet")
    assert any(many._ranker._of_pairs._is_filled)
    few, of_many = (pd.read_parquet(tmp_path / f"{n}.parquet") for n in ("few", "many"))
    pd.testing.assert_frame_equal(few, of_many, rtol=0, atol=1e-5)
    assert counts["rows"] == 500 and counts["unseen_user"] == int(few["unseen_user"].sum()) > 0


def test_pieces_of_a_file_are_read_no_further_ahead_than_there_are_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    read: list[int] = []
    numbers = in_turn(lambda number: 10 * number, (read.append(n) or n for n in range(9)))
    for n, found in enumerate(numbers):
        assert found == 10 * n
        assert len(read) <= n + 3  # that one, and one for each thread
    assert len(read) == 9
