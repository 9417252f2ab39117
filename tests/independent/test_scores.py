"""Layer, losses, penalties, AUC and rankings against the reference. Axes: as there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.largest import largest
from recsys_moe.kinds import KINDS
from recsys_moe.kinds.binary import BinaryMetrics
from recsys_moe.kinds.regression import RegressionMetrics
from recsys_moe.model import penalties
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.request import Request
from recsys_moe.model.shape import ModelShape
from recsys_moe.model.tasks import mean_loss
from recsys_moe.routers import ROUTERS, Routing, router
from tests.independent import reference_scores as ref
from tests.independent.reference_routers import INFERENCE
from tests.independent.reference_scores import Array

RNG = np.random.default_rng(0)
NAN = math.nan
E, K = 6, 2


def tensor(values: Array) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


# --- the layer and the model


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
@pytest.mark.parametrize("name", ["moesart", "softmax", "expert_choice", "dselect_k", "soft_topk"])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_the_layer_gives_the_mixture_of_each_task(name: str, dispatch: str, rows: int) -> None:
    torch.manual_seed(0)
    routers = [router(name, input_dim=5, num_experts=E) for _ in range(2)]
    layer = MoE(Experts(E, 5, 4), routers, dispatch).double().eval()  # type: ignore[arg-type]
    x_BD = RNG.standard_normal((rows, 5))
    mixed_BTH, routings = layer(tensor(x_BD))
    kernel_EDH, bias_EH = (p.detach().numpy() for p in layer.experts.parameters())
    for task, routing in enumerate(routings):
        expected = ref.mixture(x_BD, routing.weights_BE.detach().numpy(), kernel_EDH, bias_EH)
        np.testing.assert_allclose(mixed_BTH[:, task].detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["moesart", "softmax", "comet"])
def test_the_model_is_embeddings_mixture_tower_and_head(name: str) -> None:
    """z_t = head(relu(W mixture_t + b)), with x the user's vector beside the item's."""
    torch.manual_seed(0)
    sizes = {"embedding_dim": 4, "num_experts": E, "expert_dim": 8, "tower_dims": (7,)}
    config = ROUTERS[name].Config()
    model = (
        MultiTaskMoE(MultiTaskMoE.Config(router=config, **sizes), ModelShape(9, 8, 2))
        .double()
        .eval()
    )  # type: ignore[arg-type]
    p = {key: value.numpy() for key, value in model.state_dict().items()}
    user_B, item_B = RNG.integers(0, 10, 50), RNG.integers(0, 9, 50)
    x_BD = np.concatenate(
        [p["user_embedding.weight"][user_B], p["item_embedding.weight"][item_B]], axis=1
    )
    found = model(Request(*map(torch.from_numpy, (user_B, item_B)))).logits_BT.detach().numpy()
    more = {"experts": E} if name == "comet" else {}
    for task in range(2):
        start = f"moe.routers.{task}."
        own = {key.removeprefix(start): value for key, value in p.items() if start in key}
        w_BE = INFERENCE[name](x_BD, own, **more)
        y_BH = ref.mixture(x_BD, w_BE, p["moe.experts.kernel_EDH"], p["moe.experts.bias_EH"])
        tower = [p[f"towers.{task}.{layer}"] for layer in ("0.weight", "0.bias")]
        hidden = np.maximum(y_BH @ tower[0].T + tower[1], 0)
        z_B = hidden @ p[f"towers.{task}.2.weight"][0] + p[f"towers.{task}.2.bias"]
        np.testing.assert_allclose(found[:, task], z_B, atol=1e-6)  # logits are float32


# --- losses and metrics

ROWS = {
    "random": (3 * RNG.standard_normal(60), (RNG.random(60) < 0.4).astype(float)),
    "ties": (RNG.integers(-2, 3, 60).astype(float), (RNG.random(60) < 0.4).astype(float)),
    "all equal": (np.zeros(8), np.array([1.0, 0] * 4)),
    "logits of 1e4": (1e4 * RNG.standard_normal(60), (RNG.random(60) < 0.4).astype(float)),
    "no label for a third": (
        RNG.standard_normal(60),
        np.where(np.arange(60) % 3, np.arange(60) % 2, NAN),
    ),
}


@pytest.mark.parametrize("rows", [*ROWS, "one row", "no row", "no label"])
@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_losses_are_means_over_labelled_rows(kind: str, rows: str) -> None:
    few = {"one row": ([0.3], [1.0]), "no row": ([], []), "no label": ([0.3, 2.0], [NAN, NAN])}
    z_B, y_B = map(np.asarray, (ROWS | few)[rows])  # type: ignore[operator]
    logits_B = tensor(z_B).requires_grad_()
    loss = mean_loss(KINDS[kind], logits_B, tensor(y_B))
    assert loss.item() == pytest.approx(ref.mean_loss(kind, z_B, y_B), rel=1e-12)
    loss.backward()
    for row in range(min(len(z_B), 5)):
        step = 1e-4 * (np.arange(len(z_B)) == row)
        up, down = (ref.mean_loss(kind, z_B + sign * step, y_B) for sign in (1, -1))
        assert logits_B.grad is not None
        assert logits_B.grad[row].item() == pytest.approx((up - down) / 2e-4, abs=1e-3, rel=1e-4)


@pytest.mark.parametrize("rows", ["random", "ties", "all equal", "no label for a third"])
def test_binary_metrics_of_a_split_in_pieces(rows: str) -> None:
    z_B, y_B = (values.astype(np.float32).astype(np.float64) for values in ROWS[rows])
    metrics = BinaryMetrics()
    for part in np.array_split(np.arange(len(z_B)), 4):
        metrics.update(tensor(z_B[part]), tensor(y_B[part]))
    found, has = metrics.compute(), ~np.isnan(y_B)
    assert found["auc"] == pytest.approx(ref.auc(z_B[has], y_B[has]), abs=1e-12)
    assert found["bce"] == pytest.approx(ref.mean_loss("binary", z_B, y_B), rel=1e-12)
    p_B = 1 / (1 + np.exp(-z_B[has]))
    assert found["ece"] == pytest.approx(ref.calibration_error(p_B, y_B[has]), abs=1e-6)


def test_regression_metrics_of_a_split_in_pieces() -> None:
    z_B, y_B = ROWS["no label for a third"]
    metrics = RegressionMetrics()
    for part in np.array_split(np.arange(len(z_B)), 4):
        metrics.update(tensor(z_B[part]), tensor(y_B[part]))
    expected = ref.mean_loss("regression", z_B, y_B)
    assert metrics.compute()["mse"] == pytest.approx(expected, rel=1e-12)


# --- penalties

LOGITS = {
    "random": RNG.standard_normal((12, E)),
    "ties": np.zeros((12, E)),
    "one row": RNG.standard_normal((1, E)),
}


def softmax(o_BE: Array) -> Array:
    e_BE = np.exp(o_BE - o_BE.max(-1, keepdims=True))
    return e_BE / e_BE.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", LOGITS)
def test_penalties_are_those_of_the_formulas(kind: str) -> None:
    o_BE = LOGITS[kind]
    g_BE = softmax(o_BE)
    r_BE = RNG.multinomial(4, [1 / E] * E, len(o_BE))
    found = {
        "trimmed_lasso": penalties.trimmed_lasso(tensor(g_BE), K),
        "switch": penalties.switch(tensor(g_BE), torch.from_numpy(r_BE)),
        "importance": penalties.importance(tensor(g_BE)),
        "z_loss": penalties.z_loss(tensor(o_BE)),
        "load": penalties.smooth_load(tensor(o_BE), tensor(o_BE), K),
    }
    expected = {
        "trimmed_lasso": ref.trimmed_lasso(g_BE, K),
        "switch": ref.switch(g_BE, r_BE),
        "importance": ref.importance(g_BE),
        "z_loss": ref.z_loss(o_BE),
        "load": ref.load(o_BE, o_BE, K),
    }
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_the_load_of_a_noisy_topk_has_a_bar_of_the_other_experts() -> None:
    clean_BE, scale_BE = LOGITS["random"], 0.1 + RNG.random((12, E))
    noisy_BE = clean_BE + scale_BE * RNG.standard_normal((12, E))
    tensors = map(tensor, (clean_BE, noisy_BE, scale_BE))
    expected = ref.noisy_load(clean_BE, noisy_BE, scale_BE, K)
    assert penalties.noisy_load(*tensors, K).item() == pytest.approx(expected, rel=1e-9)


def test_switch_and_load_of_a_router_that_keeps_all_judge_its_favourite() -> None:
    o_BE = LOGITS["random"]
    g_BE, first_BE = softmax(o_BE), np.eye(E)[o_BE.argmax(1)]
    everyone = torch.ones(o_BE.shape, dtype=torch.bool)
    routing = Routing(tensor(g_BE), everyone, tensor(g_BE), tensor(o_BE))
    found = float(penalties.penalty({"switch": 1.0}, routing, E))
    assert found == pytest.approx(ref.switch(g_BE, first_BE), rel=1e-9)
    found = float(penalties.penalty({"load": 1.0}, routing, E))
    assert found == pytest.approx(ref.load(o_BE, o_BE, 1), rel=1e-9)


# --- rankings


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("k", [1, 5, 60])
def test_the_largest_are_in_order_and_equal_ones_by_index(rows: str, k: int) -> None:
    scores_N = ROWS[rows][0].astype(np.float32)
    places = largest(torch.from_numpy(scores_N), k)
    assert places.tolist() == ref.ranking(scores_N, k)


def test_recommendations_are_the_best_of_all_scores(run: Path, prepared: Path) -> None:
    """Every item, scored as a pair, in the order of its prediction."""
    predictor = Predictor.load(run)
    users, items = (
        pd.read_parquet(prepared / f"{name}s.parquet")[name].tolist() for name in ("user", "item")
    )
    for user in users[:5]:
        scores_N = predictor.score([user] * len(items), items).tasks["watch"].double().numpy()
        found = [(one.item, one.scores["watch"]) for one in predictor.recommend([user], k=10)[0]]
        best = [(items[n], pytest.approx(scores_N[n], abs=1e-6)) for n in ref.ranking(scores_N, 10)]
        assert found == best
