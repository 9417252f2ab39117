"""Learning curves are metrics.csv, and the routing log is what the routers did.

That a stopped and continued run has the same log: tests/train/test_resume.py.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recsys_moe.artifact.epoch_metrics import Numbers, read_epochs
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.artifact.monitor import Monitor
from recsys_moe.artifact.routing_history import (
    FILE,
    ROWS,
    RoutingHistory,
    read_routing,
    spread_rows,
    take_rows,
    top_expert,
    top_experts,
)
from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.errors import DataError
from recsys_moe.lab.report.learning import consistency, learning_curves
from recsys_moe.lab.report.run import Options, look_at
from recsys_moe.routers import Routing
from recsys_moe.schema import Schema
from tests.lab.report.conftest import silent


def test_curves_are_the_columns_of_metrics_csv(run: Path) -> None:
    with (run / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = learning_curves(read_epochs(run / "metrics.csv"), load_artifact(run).schema.tasks)
    assert found.epochs == [1, 2]
    assert found.val_loss == [float(row["val/loss"]) for row in rows]
    assert found.train_loss == [float(row["train/loss"]) for row in rows]
    assert found.metrics["watch AUC"] == [float(row["val/watch/auc"]) for row in rows]
    assert found.metrics["rating MSE"] == [float(row["val/rating/mse"]) for row in rows]
    assert found.best_epoch == 1 + found.val_loss.index(min(found.val_loss))


def test_the_best_epoch_of_the_curves_is_that_of_the_monitor(run: Path) -> None:
    epochs: dict[int, Numbers] = {
        1: {"train/loss": 2.0, "val/loss": 0.4, "val/watch/auc": 0.6},
        2: {"train/loss": 1.0, "val/loss": 0.5, "val/watch/auc": 0.7},
    }
    tasks = load_artifact(run).schema.tasks
    assert learning_curves(epochs, tasks).best_epoch == 1
    found = learning_curves(epochs, tasks, Monitor("watch/auc", "max"))
    assert (found.best_epoch, found.monitor) == (2, "watch/auc")


def test_the_curves_of_a_run_name_the_weights_it_trained_with(run: Path) -> None:
    looked = look_at(run, Options(rows=64), silent)
    assert (curves := looked.curves()) is not None
    assert curves.trained_by == ""
    raw = looked.artifact.config.model_dump(mode="json")
    names = [task.name for task in looked.artifact.schema.tasks]
    raw["tasks"] = {name: {"training_weight": 0.25} for name in names}
    apart = replace(looked, artifact=replace(looked.artifact, config=parse_config(raw)))
    assert (curves := apart.curves()) is not None
    assert curves.trained_by == ", ".join(f"{name} 0.25" for name in names)


def test_consistency_counts_rows_with_the_same_top_expert(run: Path) -> None:
    watch = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    rating = [[2, 2, 2, 2], [3, 3, 3, -1], [3, 3, 3, 3]]
    top = torch.tensor([watch, rating]).transpose(0, 1).short()
    history = RoutingHistory(torch.tensor([1, 2, 3]), top, torch.arange(4))
    found = consistency(history, load_artifact(run).schema.tasks)
    assert found.epochs == [2, 3]
    assert found.same == {"watch": [3 / 4, 4 / 4], "rating": [0, 3 / 4]}
    # watch, epochs 1 and 2: expert 0 has 2/4 and 1/4 of the rows, expert 1 has 2/4 and 3/4
    assert found.chance["watch"][0] == pytest.approx(2 / 4 * 1 / 4 + 2 / 4 * 3 / 4)
    assert found.chance["rating"] == pytest.approx([0, 3 / 4])
    assert found.rows == 4


def test_the_last_epoch_of_the_log_is_where_the_last_model_sends_its_rows(
    prepared: Path, run: Path
) -> None:
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    artifact, history = load_artifact(run), read_routing(run / FILE)
    weights = {name.removeprefix("model."): value for name, value in state.items()}
    artifact.model.load_state_dict(weights)
    columns = load_columns(prepared, artifact.schema, "val")
    sampled = columns.take(history.row_N)
    assert history.epoch_R.tolist() == [1, 2]
    assert history.row_N.tolist() == list(range(len(columns)))  # 225 rows fit in the sample
    expected = top_experts(artifact.model, sampled.request)
    assert torch.equal(history.top_RTN[-1], expected)
    x_ND = torch.cat(
        [artifact.model.user_embedding(sampled.user), artifact.model.item_embedding(sampled.item)],
        1,
    )
    assert artifact.config.model.router.name == "moesart"  # equal weights: the logits decide
    assert torch.equal(expected[0].long(), artifact.model.routers[0](x_ND).logits_BE.argmax(1))


def test_the_top_expert_has_the_largest_weight_and_of_equal_ones_the_largest_probability() -> None:
    weights_BE = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.4, 0.6, 0.0, 0.0], [0.0] * 4])
    # row 0: 2 of the tied 0 and 2, though 1 is more probable; row 1: no tie; row 2: nobody
    probs_BE = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.6, 0.3, 0.1, 0.0], [0.25] * 4])
    selected_BE = weights_BE > 0
    assert top_expert(Routing(weights_BE, selected_BE, probs_BE)).tolist() == [2, 1, -1]
    selected_BE[2, 3] = True  # an expert of weight 0 takes the row
    assert top_expert(Routing(weights_BE, selected_BE)).tolist() == [0, 1, 3]


@pytest.mark.parametrize(("total", "group"), [(100_003, 1), (100_003, 512), (10, 4), (5000, 3000)])
def test_sampled_rows_are_whole_groups_spread_over_the_split(total: int, group: int) -> None:
    row_N = spread_rows(total, ROWS, group)
    assert 0 < len(row_N) <= max(ROWS, group)
    groups = {row // group for row in row_N.tolist()}
    whole = [row for g in sorted(groups) for row in range(g * group, min((g + 1) * group, total))]
    assert row_N.tolist() == whole
    assert total <= ROWS or group > ROWS or max(groups) * group > 0.7 * total


def test_rows_are_taken_from_chunks_as_from_one_piece(prepared: Path) -> None:
    columns = load_columns(prepared, Schema.load(prepared), "test")

    class Chunked:
        def chunks(self) -> list[object]:
            parts = (columns.take(slice(n, n + 33)) for n in range(0, len(columns), 33))
            return [type(columns)(*part) for part in parts]

    place = torch.tensor([0, 32, 33, 34, 150, len(columns) - 1])
    found = take_rows(Chunked(), place)  # type: ignore[arg-type]
    assert torch.equal(found.user, columns.user[place])
    assert torch.equal(found.labels.nan_to_num(-1), columns.labels[place].nan_to_num(-1))


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a file of tensors")
    with pytest.raises(DataError, match="routing.safetensors is damaged"):
        read_routing(tmp_path / FILE)
