"""The small studies: errors of rows, draws of a split, epochs in turn, plain factors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import common
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.train.fit import fit
from research import draws, epoch_minutes, row_errors
from research.plain_factors import Factors, weights_and_offsets
from tests.conftest import TINY_MODEL


def test_errors_of_rows_are_those_of_means_over_users_and_the_figures_those_of_evaluate(
    run: Path, prepared: Path
) -> None:
    users, tasks = row_errors.scored(run, prepared, "test")
    found = row_errors.figures(tasks, np.ones(len(users)))
    judged = evaluate_artifact(run, "test", prepared)
    watch, rating = judged["tasks"]["watch"], judged["tasks"]["rating"]
    expected = [judged["loss"], watch["bce"], watch["auc"], rating["mse"]]
    assert list(found.values()) == pytest.approx(expected, abs=1e-6)
    # Four users with two rows each, whose squared errors are 0, 1, 4 and 9: their mean has a
    # standard error of sqrt((3.5**2 + 2.5**2 + 0.5**2 + 5.5**2) / 4 / 4) = 1.75, and twice as many
    # rows do not make it smaller. 4,000 draws know it to 1.75 / sqrt(8000) = 0.02.
    error = torch.tensor([0.0, 1, 2, 3]).repeat(2)
    task = row_errors.Task("rating", "regression", 1.0, error, torch.zeros(8))
    errors = row_errors.standard_errors(np.arange(8) % 4, [task], 4_000)
    assert errors["loss"] == pytest.approx(1.75, abs=4 * 0.02)


def test_a_draw_stands_as_far_from_the_others_as_draws_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means over seeds of 1, and of 2, 3 and 4: s = 1, and 1 is off 3 by 2 / sqrt(1 + 1/3), the
    root of 3. Student's t with 2 degrees of freedom: p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(3/5)."""
    files = []
    for draw, losses in enumerate([(0.5, 1.5), (2,), (3, 3, 3), (4,)]):
        files.append(tmp_path / f"{draw}.csv")
        files[-1].write_text("\n".join(["seed,loss", *(f"0,{loss}" for loss in losses)]))
    draws.main([*map(str, files)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["draws"] == 4
    (row,) = found["rows"]
    assert row.pop("figure") == "loss"
    assert row == pytest.approx(
        {"chosen": 1, "others": 3, "s": 1, "errors": 3**0.5, "p": 1 - 0.6**0.5}
    )


class Slow:
    """A contestant whose step takes 0.1 s and whose validation of a quarter of the rows takes 2."""

    steps_per_epoch, val, val_share = 30, "rows", 0.25

    def __init__(self, made: list[str], name: str) -> None:
        self.made, self.name, self.time = made, name, 0.0

    def train(self, steps: int) -> None:
        self.made.append(f"{self.name}{steps}")
        self.time += 0.1 * steps

    def validate(self) -> None:
        self.made.append(f"{self.name}v")
        self.time += 2


def test_epochs_are_measured_in_turn_forwards_and_backwards_without_the_first_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    rivals = {name: Slow(made, name) for name in "ab"}
    monkeypatch.setitem(common.CLOCKS, "wall", lambda: sum(r.time for r in rivals.values()))
    options = argparse.Namespace(rounds=2, steps=10, warm_up=3, clock="wall")
    blocks = epoch_minutes.measure(rivals, options)
    assert made == ["a3", "a10", "av", "b3", "b10", "bv", "b3", "b10", "bv", "a3", "a10", "av"]
    for block in [*blocks["a"], *blocks["b"]]:
        # 30 steps of 0.1 s; 2 s for a quarter of the rows
        assert (block.training, block.validation) == pytest.approx((3, 8))
        assert block.epoch == pytest.approx(11)


def test_a_router_in_turn_trains_as_a_run_does(prepared: Path, tmp_path: Path) -> None:
    """Two epochs; a block ends in the middle of the first."""
    trainer = {"max_epochs": 2, "batch_size": 256, "accelerator": "cpu"}
    config = parse_config({"model": TINY_MODEL, "trainer": trainer})
    fit(config, prepared, tmp_path / "run")
    contestant = epoch_minutes.Contestant(config.model_dump(mode="json"), prepared, validate=0)
    contestant.train(3)
    contestant.train(2 * contestant.steps_per_epoch - 3)
    kept = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert contestant.module.global_step == kept["global_step"]
    torch.testing.assert_close(contestant.module.state_dict(), kept["state_dict"])


def runs(path: Path, *losses: float, label: str = "best") -> str:
    rows = "".join(f"{label},{loss}\n" for loss in losses)
    path.write_text((path.read_text() if path.is_file() else "label,loss\n") + rows)
    return str(path)


def test_seeds_of_a_draw_are_one_mean_and_other_labels_are_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = runs(tmp_path / "a.csv", 4.0, 6.0)
    runs(tmp_path / "a.csv", 99.0, label="other")
    others = [runs(tmp_path / f"{loss}.csv", loss) for loss in (1.0, 3.0)]
    draws.main([chosen, *others, "--label", "best"])
    [row] = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["figure"], row["chosen"], row["others"]) == ("loss", 5.0, 2.0)


POSITIVE_UI = torch.tensor([[1.0, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
"""User 0 watched three of five items, user 1 one."""


def test_negatives_of_a_user_weigh_as_its_positives_to_a_power() -> None:
    """To the power 1: 3 and 1. To the power 0: (3 + 1) / 2 = 2 each. None for what was watched."""
    for power, expected in ((1.0, [3.0, 1.0]), (0.0, [2.0, 2.0])):
        weight_UI, _ = weights_and_offsets(POSITIVE_UI, power)
        torch.testing.assert_close(weight_UI.sum(1), torch.tensor(expected))
        assert weight_UI[POSITIVE_UI == 1].eq(0).all()


def test_an_offset_is_the_weight_beside_that_of_uniform_negatives() -> None:
    """User 1 has 1 positive and 4 free items, which uniform negatives would weigh 1/4 each."""
    weight_UI, offset_UI = weights_and_offsets(POSITIVE_UI, 0.0)
    torch.testing.assert_close(offset_UI[1, 1:].exp(), weight_UI[1, 1:] * 4)


def test_in_training_a_pair_is_scored_without_its_own_item() -> None:
    """The score of user 1 and its only item is then that of no history: b + c = 0."""
    factors = Factors(POSITIVE_UI, by_items=True)
    assert factors.scores(training=True)[1, 0].abs() < 1e-7
    expected = factors.of_item_IR[0] @ factors.item_IR[0]
    torch.testing.assert_close(factors.scores(training=False)[1, 0], expected)
