"""The artifact from disk: scores, rankings and files of pairs on raw ids."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.manifest import FILES
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.data.columns import load_columns
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import Predictor
from recsys_moe.schema import Schema


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    file.write_text('user,item,note\n1,2,"a, b"\n1,99999,\nnobody,2,x\n')
    return file


def test_scores_on_raw_ids_equal_the_model_on_dense_indices(
    predictor: Predictor, prepared: Path
) -> None:
    schema = Schema.load(prepared)
    rows = load_columns(prepared, schema, "test").take(slice(0, 50))
    users = predictor.artifact.users["user"].take(pa.array(rows.user.numpy()))
    items = predictor.artifact.items["item"].take(pa.array(rows.item.numpy()))
    scores = predictor.score(users.to_pylist(), items.to_pylist())
    with torch.inference_mode():
        logits = predictor.artifact.model(rows.request).logits_BT
    torch.testing.assert_close(scores.tasks["watch"], logits[:, 0].sigmoid())
    torch.testing.assert_close(scores.tasks["rating"], logits[:, 1])
    assert not scores.unseen_user.any() and not scores.unseen_item.any()


def test_unseen_ids_use_the_trained_spare_row_and_are_flagged(predictor: Predictor) -> None:
    scores = predictor.score(["nobody", 1, "somebody else"], [2, "nothing", 2])
    assert scores.unseen_user.tolist() == [True, False, True]
    assert scores.unseen_item.tolist() == [False, True, False]
    watch = scores.tasks["watch"]
    assert torch.isfinite(watch).all() and watch[0] == watch[2]


def test_who_does_not_look_at_calibrated_probabilities_can_leave_them_out(
    predictor: Predictor,
) -> None:
    assert set(predictor.score([1], [2]).calibrated) == {"watch"}
    assert predictor.score([1], [2], calibrate=False).calibrated == {}


def test_a_single_id_or_lists_of_unequal_length_are_refused(predictor: Predictor) -> None:
    with pytest.raises(TypeError, match="list of ids"):
        predictor.score("1", "2")
    with pytest.raises(DataError, match="same length"):
        predictor.score([1], [2, 3])
    assert {name: len(values) for name, values in predictor.score([], []).tasks.items()} == {
        "watch": 0,
        "rating": 0,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usr,item\n1,2\n", "column 'user' .--user. is missing.*'usr'"),
        ("user,item\n1,2\n,3\n", "row 2 .*'user'"),
        ("user,item,watch\n1,2,3\n", "column 'watch' would be overwritten"),
        ("user,item\n1,2,3\n", "cannot be read: .*Expected 2 columns"),
        ("", "cannot be read: .*[Ee]mpty"),
        ("\n", "cannot be read: .*empty"),
    ],
)
def test_a_file_that_cannot_be_scored_leaves_nothing_behind(
    predictor: Predictor, tmp_path: Path, text: str, message: str
) -> None:
    source = tmp_path / "pairs.csv"
    source.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        predict_file(predictor, source, tmp_path / "out.csv")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]


def test_an_existing_output_stays_as_it_is(predictor: Predictor, pairs: Path) -> None:
    target = pairs.with_name("scores.csv")
    target.write_text("old")
    with pytest.raises(ConfigError, match="exists; pass --overwrite"):
        predict_file(predictor, pairs, target)
    assert target.read_text() == "old"
    with pytest.raises(DataError):
        bad = pairs.with_name("bad.csv")
        bad.write_text("user\n1\n")
        predict_file(predictor, bad, target, overwrite=True)
    assert target.read_text() == "old"


# --- the artifact


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


@pytest.mark.parametrize("name", FILES)
def test_an_edited_or_missing_file_is_refused_by_name(model: Path, name: str) -> None:
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[:-1])
    with pytest.raises(DataError, match=f"{name} was truncated or edited"):
        load_artifact(model)
    (model / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        load_artifact(model)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a model folder nor a run folder"):
        load_artifact(tmp_path)


@pytest.mark.slow
def test_a_copied_model_scores_without_its_run_and_without_lightning(model: Path) -> None:
    code = (
        "import sys; from recsys_moe.inference.predictor import Predictor;"
        f"Predictor.load({str(model)!r}).score([1], [2]);"
        "sys.exit('lightning' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def with_tasks_swapped(prepared: Path, out: Path) -> Path:
    shutil.copytree(prepared, out)
    schema = Schema.load(out)
    (out / "schema.json").write_text(replace(schema, tasks=schema.tasks[::-1]).to_json())
    return out


def test_evaluating_a_bare_model_needs_the_data_and_they_must_be_its_own(
    model: Path, prepared: Path, tmp_path: Path
) -> None:
    from data_prep.synthetic import prepare

    with pytest.raises(DataError, match="pass --data DIR"):
        evaluate_artifact(model, "test", None)
    with pytest.raises(DataError, match="the model's tasks are .* in this order"):
        evaluate_artifact(model, "test", with_tasks_swapped(prepared, tmp_path / "swapped"))
    prepare(tmp_path / "other", users=61, items=40, interactions=1000)
    with pytest.raises(DataError, match="differs from the ids the model was trained with"):
        evaluate_artifact(model, "test", tmp_path / "other")
    assert evaluate_artifact(model, "test", prepared)["rows"] == Schema.load(prepared).rows["test"]


def test_the_batchwise_loss_is_the_papers_mean_of_batch_means(run: Path, prepared: Path) -> None:
    """Recomputed the slow way: sum over batches of 128 of size x loss, over all rows."""
    from recsys_moe.config.build import loss_weights
    from recsys_moe.kinds import kind_of
    from recsys_moe.model.tasks import mean_loss

    artifact = load_artifact(run)
    weights = loss_weights(artifact.config, artifact.schema)
    rows = load_columns(prepared, artifact.schema, "val")
    total = 0.0
    for start in range(0, len(rows), 128):
        batch = rows.take(slice(start, start + 128))
        with torch.inference_mode():
            logits = artifact.model(batch.request).logits_BT
        losses = [
            mean_loss(kind_of(t), logits[:, i], batch.labels[:, i]) * weights[i]
            for i, t in enumerate(artifact.schema.tasks)
        ]
        total += len(batch.user) * float(sum(losses))
    result = evaluate_artifact(run, "val", None)
    assert result["loss_batchwise"] == pytest.approx(total / len(rows), rel=1e-6)
    assert result["loss"] == pytest.approx(
        weights[0] * result["tasks"]["watch"]["bce"] + weights[1] * result["tasks"]["rating"]["mse"]
    )
