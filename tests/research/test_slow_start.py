"""research/slow_start.py measures what it says: gradients, noise, distances of known answers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys_moe.config.settings import parse_config
from recsys_moe.data.rows import Columns
from recsys_moe.schema import Schema
from recsys_moe.train.module import RecModule
from research import slow_probes, slow_start

EXPERTS = 16


def built(prepared: Path, **router: Any) -> tuple[RecModule, Columns]:
    """A small model, and as many rows with every label."""
    model = {"embedding_dim": 4, "expert_dim": 8, "tower_dims": [], "biases": False}
    model |= {"num_experts": EXPERTS, "router": router or {"name": "moesart", "temperature": 1.0}}
    schema = Schema.load(prepared)
    module = RecModule(parse_config({"model": model}).model_dump(mode="json"), schema.to_json())
    draw = torch.Generator().manual_seed(1)
    user_B, item_B = (torch.randint(0, 40, (64,), generator=draw) for _ in range(2))
    labels_BT = torch.randint(0, 2, (64, 2), generator=draw).float()
    return module, Columns(user_B.int(), item_B.int(), labels_BT)


def gradients(module: RecModule, rows: Columns, chunks: int = 2) -> Any:
    return slow_probes.GateGradient(module, rows, len(rows) // chunks)


def linear_loss(output: Any, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Its gradient does not depend on the mixture: then, and only then, means of draws are easy."""
    return output.logits_BT.mean(), torch.zeros(())


def test_a_draw_of_all_experts_has_the_dense_gradient_and_no_noise(prepared: Path) -> None:
    # Strategy (i) leaves the logits as they are: w = g over the drawn, here all.
    everyone = {"name": "moesart", "temperature": 1.0, "k": EXPERTS, "strategy": "i"}
    module, rows = built(prepared, **everyone)
    gradient = gradients(module, rows)
    for drawn_CG, dense_CG in zip(gradient.drawn(0), gradient.dense(), strict=True):
        torch.testing.assert_close(drawn_CG, dense_CG)
    found = slow_probes.gate_signal(gradient, 3, ["watch", "rating"])
    for task in ("watch", "rating"):
        assert found[f"gate_draw_noise.{task}"] < 1e-4 * found[f"gate_row_noise.{task}"]
        assert found[f"gate_dense_cosine.{task}"] == pytest.approx(1, abs=1e-5)
        assert found[f"gate_dense_part.{task}"] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_with_an_even_gate_the_mean_draw_is_a_seventeenth_of_the_dense_gradient(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. (3) with k = 2 weighs the adjusted expert z with g / (1 + g), the other with 1 / (1 + g).

    With g = 1 / E the gradient by the logit of z is E / (E + 1)^2 (h_z - h_other). z is each
    expert with probability 1 / E, and h_other the mean of the others on average, which is
    E / (E - 1) (mean - h_z) away. Dense: (h_z - mean) / E. So E^2 / ((E + 1)^2 (E - 1)) remains:
    256 / (289 * 15) = 1 / 16.93 with 16 experts, whatever the rows - for a linear loss.
    """
    module, rows = built(prepared)
    monkeypatch.setattr(module, "losses", linear_loss)
    for router in module.model.routers:
        nn.init.zeros_(router.gate.weight)
    draws = 3000
    found = slow_probes.gate_signal(gradients(module, rows, 1), draws, ["watch", "rating"])
    for task in ("watch", "rating"):
        assert found[f"gate_dense_part.{task}"] == pytest.approx(256 / (289 * 15), rel=0.02)
        assert found[f"gate_dense_cosine.{task}"] > 0.99


def test_signal_and_noise_are_told_apart() -> None:
    """Mean (3, 4), so the signal is 5; rows add +-2 on one axis, draws +-1 on the other."""
    sign_RC = torch.randn(400, 400, generator=torch.Generator().manual_seed(0)).sign()
    rows_C = torch.tensor([2.0, -2.0]).repeat(200)
    drawn_RCG = torch.stack([3 + rows_C.expand(400, -1), 4 + sign_RC], -1)
    found = slow_probes.signal(drawn_RCG)
    expected = {"signal": 5, "draw_noise": 1, "row_noise": 2, "snr": 5 / math.sqrt(1 + 4)}
    assert found == pytest.approx(expected, rel=0.01)


def test_equal_experts_have_no_distance_and_opposite_ones_all(prepared: Path) -> None:
    module, rows = built(prepared)
    experts = module.model.moe.experts
    with torch.no_grad():
        experts.kernel_EDH.copy_(experts.kernel_EDH[:1].clone().expand_as(experts.kernel_EDH))
    same = slow_probes.expert_distance(module.model, rows, ["watch", "rating"])
    assert same["expert_cosine"] == pytest.approx(1, abs=1e-5)
    for name in ("expert_difference", "expert_share", "logit_share.watch", "logit_share.rating"):
        assert same[name] == pytest.approx(0, abs=1e-3), name
    with torch.no_grad():  # each expert one unit of its own, whatever the row: 8 units, so half of
        experts.kernel_EDH.zero_()  # the pairs (0, 8), (1, 9) ... share theirs
        experts.bias_EH.copy_(torch.eye(8).repeat(2, 1))
    apart = slow_probes.expert_distance(module.model, rows, ["watch", "rating"])
    # Of 16 x 15 ordered pairs 16 are equal. Squares of differences: 0 for these, else 1 + 1.
    assert apart["expert_cosine"] == pytest.approx(16 / 240)
    assert apart["expert_difference"] == pytest.approx(math.sqrt(2 * 224 / 240))
    assert apart["expert_share"] == pytest.approx(1)


def table_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


OWN = (
    "own=moesart try.router_lr_multiplier=10 try.dense_epochs=1 try.embeddings=4 optim.eps=1.0e-10"
)
SMALL = [
    *("--set", "model.embedding_dim=4", "--set", "model.expert_dim=8"),
    *("--set", "model.num_experts=4"),
    *("--set", "trainer.batch_size=64", "--epochs=2", "--draws=2", "--chunks=2", "--rows=50"),
]


def test_it_measures_variants_keeps_the_others_rows_and_draws(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, plot = tmp_path / "a.csv", tmp_path / "a.png"
    words = [*SMALL, "--data", str(prepared), "--csv", str(table)]
    slow_start.main([*words, "--variants", "topk", "dense gate gradient"])
    capsys.readouterr()
    slow_start.main([*words, "--plot", str(plot), "--variants", OWN, "topk"])
    last = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    rows = table_rows(table)
    told = [(row["variant"], row["epoch"]) for row in rows]
    names = ("dense gate gradient", "own", "topk")
    assert told == [(name, epoch) for name in names for epoch in "012"]
    assert {row["variant"] for row in last["rows"]} == {"own", "topk"}
    own = [row for row in rows if row["variant"] == "own"]
    # U(-0.2, 0.2) has the standard deviation 0.2 / sqrt(3); few numbers, so roughly.
    assert float(own[0]["user_embedding_std"]) == pytest.approx(0.2 / math.sqrt(3), rel=0.15)
    assert float(own[1]["train/evaluated_share"]) == 1 > float(own[2]["train/evaluated_share"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_adams_steps_are_as_long_as_the_rate_of_their_group(prepared: Path, tmp_path: Path) -> None:
    """Its first step is the rate times the sign of each gradient, so the norms are as the rates."""
    table = tmp_path / "a.csv"
    once = ["--epochs=1", "--every=1000000"]  # the first step alone is watched
    variants = ["slow=softmax", "quick=softmax try.router_lr_multiplier=10"]
    words = ["--data", str(prepared), "--csv", str(table), "--variants", *variants]
    slow_start.main([*SMALL, *once, *words])
    slow, quick = (row for row in table_rows(table) if row["epoch"] == "1")
    ratio = float(quick["gate_update_share"]) / float(slow["gate_update_share"])
    assert ratio == pytest.approx(10, rel=1e-3)
    assert float(quick["expert_update_share"]) == pytest.approx(float(slow["expert_update_share"]))
