"""A plain lightning.Trainer does what `fit` does: same losses, metrics of `evaluate`, a model."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from recsys_moe import Predictor, RecDataModule, RecModule, fit, save_model
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.data.rows import Batch
from recsys_moe.data.streaming import open_rows
from recsys_moe.errors import ConfigError
from tests.conftest import TINY_MODEL

Sections = dict[str, Any]
BASE: Sections = {"model": TINY_MODEL, "trainer": {"batch_size": 64}}
SAMPLED = {"resample_negatives": True, "popularity_exponent": 0.5}
BAGS = {"item_bag": "ratings", "user_bag": "ratings", "bag_dim": 4, "bag_dropout": 0.2}
CASES: dict[str, Sections] = {
    "plain": {},
    "biases": {"model": {**TINY_MODEL, "biases": True}},
    "features and bags": {"model": {**TINY_MODEL, **BAGS, "features": "all"}},
    "averaged weights": {"optim": {"ema_decay": 0.9, "lr": 0.01}},
    "negatives": {"data": SAMPLED},
    "experts by user": {"model": {**TINY_MODEL, "router": {"name": "hash"}}},
    "cosine": {"optim": {"schedule": "cosine"}},
    "from disk": {"data": {"shuffle_buffer": 300}},
}
EPOCHS = 3


class History(Callback):
    """The metrics of every epoch, as a callback of the user's reads them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def trainer_for(out: Path, *more: Callback, **options: Any) -> Trainer:
    given: dict[str, Any] = {"max_epochs": EPOCHS, "logger": False, **options}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", default_root_dir=out, callbacks=[*more], **given, **quiet)


def trained(data: Path, out: Path, sections: Sections, **options: Any) -> tuple[Trainer, History]:
    history = History()
    trainer = trainer_for(out, history, ModelCheckpoint(out, monitor="val/loss"), **options)
    trainer.fit(RecModule({**BASE, **sections}), datamodule=RecDataModule(data))
    return trainer, history


def metrics_of(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as stream:
        rows = [*csv.DictReader(stream)]
    return [{k: float(v) for k, v in row.items() if "/" in k} for row in rows]


def run_by_fit(data: Path, out: Path, sections: Sections) -> list[dict[str, float]]:
    steps = {"batch_size": 64, "max_epochs": EPOCHS}
    fit(data, out, {**BASE, **sections, "trainer": steps})
    return metrics_of(out)


@pytest.mark.parametrize("case", CASES)
def test_a_plain_trainer_has_the_metrics_of_fit_in_every_epoch(
    featured: Path, tmp_path: Path, case: str
) -> None:
    wanted = run_by_fit(featured, tmp_path / "run", CASES[case])
    trainer, history = trained(featured, tmp_path / "plain", CASES[case])
    assert len(history.rows) == len(wanted) == EPOCHS
    for own, other in zip(history.rows, wanted, strict=True):
        assert own == pytest.approx(other, rel=1e-6, abs=1e-6)
    found = save_model(trainer, tmp_path / "model", ckpt_path="best")
    for name in ("weights.safetensors", "seen.safetensors", "users.parquet", "schema.json"):
        own, other = (f / name for f in (tmp_path / "model", tmp_path / "run/model"))
        assert own.read_bytes() == other.read_bytes()
    assert evaluate_artifact(tmp_path / "model", "val", featured)["loss"] == found["loss"]


@pytest.mark.parametrize("case", ["plain", "features and bags", "averaged weights"])
def test_test_and_predict_are_those_of_the_saved_model(
    featured: Path, tmp_path: Path, case: str
) -> None:
    trainer, _ = trained(featured, tmp_path, {**CASES[case], "data": {"eval_batch_size": 128}})
    data = trainer.datamodule
    before = {k: v.clone() for k, v in trainer.lightning_module.state_dict().items()}
    (tested,) = trainer.test(trainer.lightning_module, datamodule=data, verbose=False)
    parts = trainer.predict(trainer.lightning_module, datamodule=data)
    save_model(trainer.lightning_module, tmp_path / "model")
    after = trainer.lightning_module.state_dict()
    assert before.keys() == after.keys() and all(before[k].equal(after[k]) for k in before)
    wanted = evaluate_artifact(tmp_path / "model", "test", featured)
    assert tested["test/loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    for task, metrics in wanted["tasks"].items():
        for name, value in metrics.items():
            if isinstance(value, float):
                assert tested[f"test/{task}/{name}"] == pytest.approx(value, rel=1e-6)
    assert predicted(parts) == pytest.approx(scored(tmp_path / "model", featured), abs=1e-6)


def predicted(parts: list[dict[str, Tensor]]) -> list[float]:
    assert len(parts) > 1
    return [x for task in ("watch", "rating") for part in parts for x in part[task].tolist()]


def scored(model: Path, data: Path) -> list[float]:
    """Of the rows of test by the Predictor, from their raw ids."""
    predictor = Predictor.load(model)
    rows = open_rows(data, predictor.artifact.schema, "test", 10**6)
    ids = (predictor.artifact.users["user"], predictor.artifact.items["item"])
    pairs = zip(ids, (rows.user, rows.item), strict=True)  # type: ignore[union-attr]
    users, items = ([*map(id_of(column), index.tolist())] for column, index in pairs)
    found = predictor.score(users, items).tasks
    return [x for task in ("watch", "rating") for x in found[task].tolist()]


def id_of(column: Any) -> Any:
    known = column.to_pylist()
    return lambda index: known[index] if index < len(known) else "nobody"


def test_validation_alone_repeats_what_training_logged(featured: Path, tmp_path: Path) -> None:
    trainer, history = trained(featured, tmp_path, CASES["averaged weights"])
    (alone,) = trainer.validate(datamodule=trainer.datamodule, ckpt_path="best", verbose=False)
    best = min(history.rows, key=lambda row: row["val/loss"])
    assert alone == pytest.approx({k: v for k, v in best.items() if k in alone})
    assert "train/loss" not in alone


def test_a_module_from_a_checkpoint_is_saved_and_trains_on(featured: Path, tmp_path: Path) -> None:
    trainer, _ = trained(featured, tmp_path, CASES["averaged weights"])
    best = trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    loaded = RecModule.load_from_checkpoint(best)
    one = save_model(loaded, tmp_path / "a", data=featured)
    other = save_model(trainer, tmp_path / "b", ckpt_path=best)
    assert {**one, "epoch": 0} == {**other, "epoch": 0}
    names = [folder / "weights.safetensors" for folder in (tmp_path / "a", tmp_path / "b")]
    assert names[0].read_bytes() == names[1].read_bytes()
    biases = loaded.model.biases.user_UT.clone()  # type: ignore[union-attr]
    again = trainer_for(tmp_path, max_epochs=1, enable_checkpointing=False)
    again.fit(loaded, datamodule=RecDataModule(featured))
    assert loaded.model.biases.user_UT.equal(biases)  # type: ignore[union-attr]
    assert loaded.model.biases.user_UT.any()  # type: ignore[union-attr]


def test_each_epoch_has_other_batches_and_every_row_once(featured: Path, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Watch(Callback):
        def on_train_epoch_start(self, *unused: Any) -> None:
            seen.append([])

        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
        ) -> None:
            seen[-1] += batch.user.tolist()

    module = RecModule({**BASE, "data": {"id_dropout": 0, "features_only_rate": 0}})
    trainer = trainer_for(tmp_path, Watch(), enable_checkpointing=False)
    trainer.fit(module, datamodule=RecDataModule(featured))
    first, second, third = seen
    assert first != second != third != first
    assert sorted(first) == sorted(second) == sorted(third)


def test_a_module_needs_its_data_module(featured: Path, tmp_path: Path) -> None:
    data = RecDataModule(featured)
    trainer = trainer_for(tmp_path)
    with pytest.raises(ConfigError, match=r"got NoneType; pass datamodule=RecDataModule"):
        trainer.fit(RecModule(BASE), data.train_batches(0), data.val_batches())


def test_a_configuration_that_is_none_is_refused(featured: Path) -> None:
    for made in (lambda: RecModule(5), lambda: RecDataModule(featured, 5)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"sections of settings, .*got int; e.g. {'trainer'"):
            made()


def test_a_data_module_with_another_configuration_is_refused(
    featured: Path, tmp_path: Path
) -> None:
    data = RecDataModule(featured, {"data": {"id_dropout": 0.25}})
    with pytest.raises(ConfigError, match=r"data.id_dropout=0.002, got 0.25; leave config out"):
        trainer_for(tmp_path).fit(RecModule({"model": TINY_MODEL}), datamodule=data)


def test_a_data_module_follows_the_module_that_it_serves(featured: Path, tmp_path: Path) -> None:
    """Also a second one, with another batch size and fresh negatives."""
    data, counts = RecDataModule(featured), []
    for size, more in ((64, {}), (128, SAMPLED)):
        module = RecModule({"model": TINY_MODEL, "trainer": {"batch_size": size}, "data": more})
        trainer = trainer_for(tmp_path, max_epochs=1, enable_checkpointing=False)
        trainer.fit(module, datamodule=data)
        counts.append(trainer.num_training_batches)
    assert counts[0] // 2 in (counts[1], counts[1] - 1)


def test_other_data_than_the_modules_are_refused(
    featured: Path, prepared: Path, tmp_path: Path
) -> None:
    trainer, _ = trained(prepared, tmp_path, {}, fast_dev_run=True)
    with pytest.raises(ConfigError, match="on the data it was made for, got those of"):
        trainer.test(trainer.lightning_module, datamodule=RecDataModule(featured))


@pytest.mark.parametrize(
    ("ckpt_path", "said"),
    [
        ("best", r"ckpt_path=best needs a Trainer with ModelCheckpoint\(monitor=...\)"),
        ("none.ckpt", "there is no checkpoint none.ckpt"),
        (__file__, "cannot be read as a checkpoint of RecModule"),
    ],
)
def test_a_checkpoint_that_cannot_be_saved_is_named(
    featured: Path, tmp_path: Path, ckpt_path: str, said: str
) -> None:
    trainer, _ = trained(featured, tmp_path, {}, fast_dev_run=True)
    with pytest.raises(ConfigError, match=said):
        save_model(trainer, tmp_path / "model", ckpt_path=ckpt_path)
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_no_model_is_not_replaced(featured: Path, tmp_path: Path) -> None:
    trainer, _ = trained(featured, tmp_path / "t", {}, fast_dev_run=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("dear")
    with pytest.raises(ConfigError, match="exists and is not a model folder"):
        save_model(trainer, tmp_path / "model")
    with pytest.raises(ConfigError, match="data must be a prepared folder"):
        save_model(RecModule(BASE), tmp_path / "other")
    with pytest.raises(ConfigError, match="needs a RecModule, got Linear"):
        save_model(torch.nn.Linear(1, 1), tmp_path / "other")  # type: ignore[arg-type]


def test_loggers_of_ones_own_get_every_metric(featured: Path, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trained(featured, tmp_path / "t", {}, logger=logger)
    with Path(logger.log_dir, "metrics.csv").open() as stream:
        rows = [*csv.DictReader(stream)]
    assert len([row for row in rows if row["val/loss"]]) == EPOCHS
    assert len([row for row in rows if row["train/loss"]]) == EPOCHS


def test_nothing_is_asked_of_the_user_by_warnings(featured: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer, _ = trained(featured, tmp_path, {}, log_every_n_steps=5)
        trainer.test(datamodule=trainer.datamodule, ckpt_path="best", verbose=False)
    assert [str(one.message) for one in found if "LeafSpec" not in str(one.message)] == []
