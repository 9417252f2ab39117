"""Any model by its name: every command works with it, through the public door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.own_model_in_fit import Factors
from recsys_moe import ColdUser, ModelConfig, ModelShape, Output, Predictor, Recommender, Request
from recsys_moe.artifact.graphs import Graph, export_graph
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.registry import MODELS, find_model
from recsys_moe.model.request import of_users
from recsys_moe.model.two_tower import TwoTower
from recsys_moe.train.fit import fit
from recsys_moe.train.warm_start import start_config
from tests.conftest import Command
from tests.serve.conftest import Caller
from tests.train.test_resume import STEP, fit_in_pieces

OUTSIDE = "examples.own_model_in_fit:Factors"
ENCODERS = {"features": "all", "item_bag": "ratings", "user_bag": "users", "bag_dim": 4}


def config(name: str, **model: Any) -> Config:
    trainer = {"max_epochs": 3, "batch_size": 64}
    return parse_config({"model": {"name": name, "embedding_dim": 8, **model}, "trainer": trainer})


@pytest.fixture(scope="module", params=["two_tower", OUTSIDE])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(name: str, featured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features and bags. Read only."""
    out = tmp_path_factory.mktemp("models") / "run"
    fit(config(name, **ENCODERS), featured, out)
    return out


def test_it_is_evaluated_without_routings(trained: Path, command: Command) -> None:
    result = json.loads(command("evaluate", trained, "--ranking", "--json").out)
    assert result["routing"] == {} and result["experts_per_example"] is None
    assert result["tasks"]["watch"]["auc"] > 0.5
    assert result["ranking"]["users"] > 0
    assert "experts" not in command("evaluate", trained).out
    epochs = (trained / "metrics.csv").read_text().splitlines()
    assert len(epochs) == 4 and "max_load" not in epochs[0]
    assert not (trained / "routing.safetensors").exists()


def test_a_list_holds_the_best_items_of_all_by_the_models_own_scores(trained: Path) -> None:
    """The naive twin: `score` of every pair, sorted; cold-start users among them."""
    predictor = Predictor.load(trained)
    items = predictor.items.ids.to_pylist()
    cold = ColdUser({"age": 45, "job": "job 2"}, {items[3]: 5.0, items[4]: 2.0})
    users = [*predictor.users.ids.to_pylist()[:3], "nobody", cold]
    for user, best in zip(users, predictor.recommend(users, k=7, score="rating"), strict=True):
        scores_N = predictor.score([user] * len(items), items, calibrate=False).tasks["rating"]
        expected = scores_N.sort(descending=True, stable=True)
        assert [one.index for one in best] == expected.indices[:7].tolist()
        found = torch.tensor([one.scores["rating"] for one in best])
        torch.testing.assert_close(found, expected.values[:7], rtol=1e-5, atol=1e-5)


def test_the_own_ranker_of_a_model_equals_chunks_of_its_score(trained: Path) -> None:
    model = load_artifact(trained).model
    draws, users = model.draws(0), of_users(torch.tensor([5, 0, 60]))
    own, naive = model.ranker(draws, 4096), Ranker(model, draws, 4096)
    place_B, item_B = torch.tensor([0, 0, 2]), torch.tensor([22, 1, 39])
    for task in range(2):
        found_UN = own.grid(users, torch.arange(40), task)
        expected_UN = naive.grid(users, torch.arange(40), task)
        torch.testing.assert_close(found_UN, expected_UN, rtol=1e-5, atol=1e-5)
        found_B = own.pairs(users, place_B, item_B, task)
        torch.testing.assert_close(found_B, expected_UN[place_B, item_B], rtol=1e-5, atol=1e-5)


def test_predict_and_export_agree_with_it(trained: Path, tmp_path: Path, command: Command) -> None:
    pairs, scores = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    pairs.write_text("user,item\n1,1\nnobody,1\n")
    command("predict", trained, "--input", pairs, "--output", scores)
    head, first, second = (line.split(",") for line in scores.read_text().splitlines())
    expected = Predictor.load(trained).score([1, "nobody"], [1, 1]).tasks["watch"].tolist()
    found = [float(line[head.index("watch")]) for line in (first, second)]
    assert found == pytest.approx(expected, abs=1e-6)
    artifact = load_artifact(trained)
    program, pair = export_graph(artifact).module(), (torch.arange(9), torch.arange(9))
    for one, other in zip(program(*pair), Graph(artifact).eval()(*pair), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_the_exports_pass_their_own_check(trained: Path, tmp_path: Path, command: Command) -> None:
    command("export", trained, "--out", tmp_path / "out", "--format", "pt2,onnx")
    report = json.loads((tmp_path / "out" / "export.json").read_text())
    assert {*report["formats"]} == {"model", "pt2", "onnx"}


@pytest.mark.slow
def test_it_is_reported_without_experts(trained: Path, tmp_path: Path, command: Command) -> None:
    command("report", trained, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Learning curves" in page and "Expert load" not in page and "idle experts" not in page


def test_it_is_served(trained: Path) -> None:
    call = Caller(trained)
    info = call("GET", "/model").json()
    assert info["experts"] == [] and info["settings"]["name"] in ("two_tower", OUTSIDE)
    [ranking] = call.post("/recommend", {"users": [1], "k": 3}).json()["rankings"]
    assert [one["rank"] for one in ranking["items"]] == [1, 2, 3]
    asked = {"users": [1], "items": [2], "attributions": 3}
    [pair] = call.post("/explain", asked).json()["pairs"]
    assert pair["tasks"]["watch"]["experts"] == [] and pair["tasks"]["watch"]["attributions"]


@pytest.mark.slow
def test_a_run_in_pieces_is_the_run_in_one_piece(
    name: str,
    trained: Path,
    featured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit_in_pieces(monkeypatch, config(name, **ENCODERS), featured, tmp_path / "run", [(STEP, 20)])
    for file in ("model/weights.safetensors", "metrics.csv", "evaluation/val.json"):
        assert (tmp_path / "run" / file).read_bytes() == (trained / file).read_bytes()


def test_a_warm_start_keeps_its_weights_and_its_name(
    name: str, trained: Path, featured: Path, tmp_path: Path
) -> None:
    """With a step so small that no weight changes."""
    still = parse_config({**config(name, **ENCODERS).model_dump(), "optim": {"lr": 1e-30}})
    fit(still, featured, tmp_path / "again", init_from=trained)
    before, after = (
        load_file(r / "model/weights.safetensors") for r in (trained, tmp_path / "again")
    )
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="model.name must be .*, as in the model, got mtmoe"):
        start_config({"model": {"name": "mtmoe"}}, trained)


def test_the_shipped_models_are_in_one_table() -> None:
    assert {name: model.Config.model_fields["name"].default for name, model in MODELS.items()} == {
        "mtmoe": "mtmoe",
        "two_tower": "two_tower",
    }
    assert find_model(OUTSIDE) is Factors


def test_a_configuration_without_a_name_is_the_mixture_of_experts() -> None:
    assert parse_config({"model": {"num_experts": 5}}).model.name == "mtmoe"


NO_MODEL = "tests.train.test_models:config"
UNFINISHED = "tests.train.test_models:Unfinished"


class Unfinished(Recommender):
    Config = ModelConfig


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "two_towers"}, "model.name must be one of mtmoe, .*did you mean 'two_tower'"),
        ({"name": "two_tower", "num_experts": 3}, "model.num_experts is not .*two_tower; remove"),
        ({"name": "two_tower", "rnk": 3}, "model: unknown key 'rnk'; did you mean 'rank'"),
        ({"name": "two_tower", "rank": 0}, "model.rank: .*greater .*got 0"),
        ({"rank": 3}, "model.rank is not a setting of model.name=mtmoe; remove it"),
        ({"name": "nowhere:Model"}, "model.name 'nowhere:Model' cannot be imported"),
        ({"name": "a b:c"}, "model.name must look like package.module:Class"),
        ({"name": NO_MODEL}, "must be a subclass of recsys_moe.Recommender"),
        ({"name": UNFINISHED}, "must have a `score`"),
        (3, "model: input should be a mapping of settings, got 3"),
    ],
)
def test_a_wrong_model_is_refused_in_words(model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parse_config({"model": model})
    assert "\n" not in str(refused.value)


def test_penalties_of_routers_need_routers() -> None:
    with pytest.raises(ConfigError, match="penalties.switch must be 0 with model two_tower"):
        parse_config({"model": {"name": "two_tower"}, "penalties": {"switch": 0.1}})


def test_a_logit_of_the_two_towers_is_a_dot_product_of_each_task() -> None:
    """<P u, Q v> with the rows of the task; layers of a tower are Dense + ReLU, the last linear."""
    torch.manual_seed(0)
    settings = TwoTower.Config(embedding_dim=4, rank=3, tower_dims=(5,))
    model = TwoTower(settings, ModelShape(6, 7, 2)).eval()
    request = Request(torch.tensor([0, 6, 2]), torch.tensor([7, 1, 2]))
    user_BD, item_BD = model.user_embedding(request.user), model.item_embedding(request.item)

    def tower(layers: Any, x_BD: Tensor) -> Tensor:
        first, _, last = layers
        return (x_BD @ first.weight.T + first.bias).relu() @ last.weight.T + last.bias

    users, items = tower(model.user_tower, user_BD), tower(model.item_tower, item_BD)
    expected = [(users[:, part] * items[:, part]).sum(-1) for part in (slice(3), slice(3, 6))]
    torch.testing.assert_close(model(request).logits_BT, torch.stack(expected, 1))


class _Careless(Factors):
    """Makes a common mistake."""

    mistake = ""

    def __init__(self, config: Any, shape: ModelShape) -> None:
        if self.mistake == "init":
            torch.nn.Module.__init__(self)
        else:
            super().__init__(config, shape)

    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Any:
        output = super().score(user_BD, item_BD, request)
        return {"tensor": output.logits_BT, "row": Output(output.logits_BT[:, 0])}[self.mistake]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("init", r"__init__ must call super\(\).__init__\(config, shape\)"),
        ("tensor", r"score of _Careless must return recsys_moe.Output\(logits\) .* got Tensor"),
        ("row", r"2 columns, got Output\(logits of shape \(\d+,\)\)"),
    ],
)
def test_the_common_mistakes_of_a_model_are_named(
    mistake: str, message: str, featured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Careless, "mistake", mistake)
    with pytest.raises(ConfigError, match=message):
        fit(config(f"{__name__}:_Careless"), featured, tmp_path / "run")
