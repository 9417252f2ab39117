"""`python -m examples.images.train` as a user meets it, on small made files."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from examples.common.runs import stop
from examples.images import train
from examples.images.data import Splits, multi_mnist
from examples.images.model import Expert, ImageMoE
from examples.images.module import ImageModule
from examples.images.settings import settings_for
from recsys_moe import Routing
from recsys_moe.errors import ConfigError, Interrupted
from tests.conftest import tells
from tests.examples.made_files import mnist_folder, svhn_folder

SMALL = {"epochs": 2, "batch_size": 32, "lr": 3e-3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mnist_folder(tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    """100 rows to train on, 20 and 24."""
    return multi_mnist(mnist_folder(tmp_path_factory.mktemp("few"), 60, 12))


def run(*words: object) -> int:
    return train.main([str(word) for word in words])


def test_the_networks_have_the_papers_sizes() -> None:
    """Expert: 260 + 5,020 + 36,050 + 2,550; router: 1,296 x 8 + 8; head: 2 x 2,550 + 510."""
    chosen = {"name": "moesart", "k": 4}
    assert ImageMoE((1, 36), 2, 8, chosen).sizes() == {
        "expert": 43_880,
        "router": 10_376,
        "head": 5_610,
    }
    assert ImageMoE((3, 32), 1, 8, chosen).sizes()["expert"] == 33_380  # 760 + 5,020 + 25,050 + ...


def test_weights_start_as_those_of_keras() -> None:
    """Uniform within sqrt(6 / (in + out)), of convolutions times their 25 places; no biases."""
    torch.manual_seed(0)
    model = ImageMoE((1, 36), 2, 8, {"name": "moesart", "k": 4})
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    kept = [layer for layer in layers if layer not in set(model.layer.routers.modules())]
    assert len(kept) == 8 * 4 + 2 * 3
    for layer in kept:
        places = 25 if isinstance(layer, torch.nn.Conv2d) else 1
        bound = (6 / (places * (layer.weight.shape[0] + layer.weight.shape[1]))) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert layer.bias.eq(0).all()


def test_pooling_before_the_relu_gives_the_papers_expert() -> None:
    expert, image = Expert(1, 36), torch.randn(3, 1, 36, 36)
    first, pool, relu, second, _, _, flat, *dense = expert
    hidden = pool(relu(second(pool(relu(first(image))))))
    for layer in (flat, *dense):
        hidden = layer(hidden)
    torch.testing.assert_close(expert(image), hidden)


def test_half_precision_gives_nearly_the_same_loss_and_leaves_float32_weights(
    splits: Splits, tmp_path: Path
) -> None:
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        settings = settings_for("multi_mnist", "topk", epochs=1, lr=1e-5, precision=precision)
        found[precision] = train.train(settings, splits, tmp_path / precision, "cpu")
    full, half = (result["test"]["loss"] for result in found.values())
    assert full != half
    assert half == pytest.approx(full, rel=0.02)  # bfloat16 has 8 bits: steps of 0.4%
    kept = torch.load(tmp_path / "bf16-mixed" / "checkpoints" / "best.ckpt", weights_only=False)
    assert {tensor.dtype for tensor in kept["state_dict"].values()} >= {torch.float32}
    assert torch.bfloat16 not in {tensor.dtype for tensor in kept["state_dict"].values()}


@pytest.mark.slow
def test_a_run_leaves_its_result_and_learns(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ("--data", folder, "--router", "moesart", "--k", 4, "--out", out, "--json")
    assert run(*words, "--epochs", 5, "--batch-size", 32, "--lr", 0.003) == 0
    done = capsys.readouterr()
    result = json.loads(done.out)
    assert result == json.loads((out / "result.json").read_text())
    assert result["parameters"]["expert"] == 43_880
    assert 4 <= result["test"]["experts"] <= 8
    rows = list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))
    losses = [float(row["val/loss"]) for row in rows]
    assert result["epochs_trained"] == len(rows) == 5
    assert result["val"]["loss"] == min(losses) < losses[0] < 2.5  # ln 10 = 2.30 knows nothing
    assert result["test"]["loss"] == pytest.approx(
        (result["test"]["loss_1"] + result["test"]["loss_2"]) / 2
    )
    assert (out / "curves.svg").exists() and (out / "curves.png").exists()
    assert len(done.err.splitlines()) == 5, done.err  # a line per epoch, and nothing else


def test_a_finished_run_is_not_repeated_and_others_settings_are_refused(
    splits: Splits, tmp_path: Path
) -> None:
    settings = settings_for("multi_mnist", "topk", **SMALL)
    first = train.train(settings, splits, tmp_path)
    before = (tmp_path / "metrics.csv").stat().st_mtime_ns
    assert train.train(settings, splits, tmp_path) == first
    assert (tmp_path / "metrics.csv").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds .*got 3.*--out"):
        train.train(settings_for("multi_mnist", "topk", k=3, **SMALL), splits, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["moesart", "vmoe"])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, router: str
) -> None:
    settings = settings_for("multi_mnist", router, **{**SMALL, "epochs": 3})
    straight = train.train(settings, splits, tmp_path / "straight")
    whole, steps = ImageModule.training_step, [0]

    def stops(module: ImageModule, *args: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == 6:  # 4 steps an epoch: in the second
            stop(signal.SIGTERM, None)
        return whole(module, *args)

    monkeypatch.setattr(ImageModule, "training_step", stops)
    with pytest.raises(Interrupted, match="stopped by SIGTERM"):
        train.train(settings, splits, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "result.json").exists()
    resumed = train.train(settings, splits, tmp_path / "stopped")
    assert resumed["test"] == straight["test"] and resumed["val"] == straight["val"]
    assert resumed["epochs_trained"] == 3


def test_epochs_that_were_no_better_are_not_repeated(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing moves at so small a rate; 2 steps an epoch, stopped in the first of the fourth."""
    settings = settings_for("multi_mnist", "softmax", epochs=4, lr=1e-30, batch_size=64)
    whole, steps = ImageModule.training_step, [0]

    def stops(module: ImageModule, *args: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == 7:
            stop(signal.SIGTERM, None)
        return whole(module, *args)

    monkeypatch.setattr(ImageModule, "training_step", stops)
    with pytest.raises(Interrupted):
        train.train(settings, splits, tmp_path)
    assert train.train(settings, splits, tmp_path)["best_epoch"] == 1
    assert steps[0] == 7 + 2


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 50])
def test_a_run_that_was_stopped_in_its_test_trains_no_further(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """At so large a rate the loss soon rises: patience ends the training, or the epochs do."""
    own = {"epochs": epochs, "patience": 1, "lr": 0.3, "batch_size": 64}
    settings = settings_for("multi_mnist", "softmax", **own)
    straight = train.train(settings, splits, tmp_path / "straight")
    assert straight["epochs_trained"] < 50

    def stops(module: ImageModule, *args: Any) -> None:
        stop(signal.SIGTERM, None)

    with monkeypatch.context() as patched:
        patched.setattr(ImageModule, "test_step", stops)
        with pytest.raises(Interrupted):
            train.train(settings, splits, tmp_path / "stopped")
    resumed = train.train(settings, splits, tmp_path / "stopped")
    for name in ("test", "val", "best_epoch", "epochs_trained"):
        assert resumed[name] == straight[name]


def test_a_step_adds_the_penalty_and_tells_the_routers_how_far_training_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batch 1 of 4 in epoch 2 is at 2.25; a trimmed lasso is 1 less the 4 largest of 8."""
    settings = settings_for("multi_mnist", "moesart", trimmed_lasso=0.3)
    module = ImageModule(settings, (1, 36))
    trainer: Any = SimpleNamespace(current_epoch=2, global_step=9, num_training_batches=4)
    module.trainer = trainer
    epochs: list[float] = []
    monkeypatch.setattr(module.model.layer, "set_epoch", epochs.append)
    seen: list[tuple[torch.Tensor, list[Routing]]] = []
    module.model.register_forward_hook(lambda *call: seen.append(call[-1]))
    labels_BT = torch.tensor([[3, 1], [4, 1], [5, 9]])
    loss = module.training_step((torch.rand(3, 1, 36, 36), labels_BT), 1)
    assert epochs == [2.25]
    ((logits_BTC, routings),) = seen
    penalties = []
    for routing in routings:
        assert routing.probs_BE is not None
        penalties.append(1 - routing.probs_BE.topk(4).values.sum(1).mean())
    entropy = functional.cross_entropy(logits_BTC.flatten(0, 1), labels_BT.flatten())
    torch.testing.assert_close(loss, entropy + 0.3 * (penalties[0] + penalties[1]))


def test_seeds_change_a_run_and_the_same_seed_repeats_it(splits: Splits, tmp_path: Path) -> None:
    def loss(seed: int, name: str) -> float:
        settings = settings_for("multi_mnist", "pps", **{**SMALL, "epochs": 1}, seed=seed)
        return float(train.train(settings, splits, tmp_path / name)["test"]["loss"])

    assert loss(0, "a") == loss(0, "b") != loss(1, "c")


@pytest.mark.parametrize("more", [("--dataset", "svhn"), ("--tasks", 1)])
def test_one_task_trains(folder: Path, tmp_path: Path, more: tuple[object, ...]) -> None:
    data = svhn_folder(tmp_path / "svhn") if "svhn" in more else folder
    words = ("--data", data, "--epochs", 1, "--router", "softmax", "--out", tmp_path / "run")
    assert run(*words, *more) == 0
    test = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert set(test) == {"loss", "experts", "loss_1", "accuracy_1"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--router", "moesrat"], 2, "did you mean 'moesart'"),
        (["--router", "hash"], 2, "--router ... got hash"),
        (["--router", "default_moe"], 2, "Experts, got a list"),
        (["--k", "9"], 2, "must be in 1..model.num_experts=8, got 9"),
        (["--set", "temperature"], 2, "--set must be KEY=VALUE, got temperature"),
        (["--set", "temperature=[1"], 2, "--set temperature=[1 ... YAML"),
        (["--device", "gpu"], 2, "--device gpu needs a GPU that torch sees"),
        (["--set", "warmth=1"], 2, "router moesart has no setting 'warmth'"),
        (["--epochs", "0"], 2, "--epochs ... got 0"),
        (["--lr", "0"], 2, "--lr ... got 0.0"),
        (["--tasks", "3"], 2, "--tasks ... 2 ... got 3"),
        (["--data", "nowhere"], 3, "nowhere has no train-images-idx3-ubyte.gz"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line_and_leaves_nothing(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    out = tmp_path / "run"
    assert run("--data", folder, "--out", out, *words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and tells(line, said)
    assert not out.exists()
