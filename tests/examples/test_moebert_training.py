"""`python -m examples.moebert.*` as a user meets it, on small made films."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.common.runs import stop
from examples.moebert import compare, teacher, titles, train
from examples.moebert.convert import convert
from examples.moebert.encoder import Seen
from examples.moebert.losses import hidden_distance, symmetric_kl, task_loss
from examples.moebert.module import StudentModule
from examples.moebert.settings import student
from examples.moebert.table import main as write_page
from examples.moebert.table import table
from recsys_moe.errors import ConfigError, Interrupted
from recsys_moe.model.penalties import switch, trimmed_lasso
from tests.conftest import tells
from tests.examples.made_texts import movies_folder, small_encoder, texts

SMALL = {"train": 48, "val": 24, "test": 24}
QUICK = ("--epochs", "1", "--batch-size", "24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return movies_folder(tmp_path_factory.mktemp("films"))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titles, "COUNTS", SMALL)


@pytest.fixture(scope="module")
def taught(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of 2 layers, 16 wide, that knows the films."""
    out = tmp_path_factory.mktemp("teacher")
    words = ("--data", folder, "--out", out, "--width", 16, "--layers", 2, "--batch-size", 8)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(titles, "COUNTS", SMALL)
        assert teacher.main([*map(str, words), "--epochs", "6", "--lr", "0.01"]) == 0
    return out


def run(*words: object) -> int:
    return train.main([str(word) for word in words])


def settings(taught: Path, router: str = "moesart", **changes: Any) -> Any:
    own = {"epochs": 2, "batch_size": 12, "lr": 3e-3, "teacher": str(taught), **changes}
    return student("titles", router=router, **own)


def test_a_teacher_learns_and_leaves_a_checkpoint(taught: Path) -> None:
    result = json.loads((taught / "result.json").read_text())
    assert result["test"]["accuracy"] > 0.9  # chance: 0.25
    config = json.loads((taught / "config.json").read_text())
    assert config["model_type"] == "bert" and config["hidden_size"] == 16
    assert config["id2label"]["3"] == "LABEL_3"


def test_a_run_says_how_far_the_student_is_from_its_teacher(
    folder: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ("--data", folder, "--teacher", taught, "--router", "moesart", "--out", out)
    more = ("--epochs", 3, "--batch-size", 8, "--lr", 0.003, "--trimmed-lasso", 0.1)
    assert run(*words, *more) == 0
    done = capsys.readouterr()
    result = json.loads((out / "result.json").read_text())
    apart = result["distilled"]
    lost = 100 * (result["teacher_accuracy"] - apart["accuracy"])
    assert f"{lost:.2f} points below the teacher's" in done.out
    assert f"teacher's answer on {100 * apart['agreement']:.2f}% of the texts" in done.out
    assert apart["accuracy"] == pytest.approx(result["test"]["accuracy"])
    assert result["converted"]["kl"] > 0 and 0 < apart["kl"] < 1
    assert set(result["dense"]) == set(apart)
    rows = list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))
    assert result["epochs_trained"] == len(rows) == 3
    assert (out / "curves.svg").exists() and (out / "curves.png").exists()
    assert len(done.err.splitlines()) == 3, done.err  # a line per epoch, and nothing else
    assert run(*words, *more, "--json") == 0  # finished: printed again
    assert json.loads(capsys.readouterr().out) == result


def test_a_student_is_trained_in_training_mode_and_its_teacher_is_not(
    folder: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, modes = StudentModule.training_step, []

    def looks(module: StudentModule, *args: Any) -> torch.Tensor:
        modes.append({part.training for part in module.model.modules()})
        assert not any(part.training for part in module.aside[0].modules())
        return whole(module, *args)

    monkeypatch.setattr(StudentModule, "training_step", looks)
    train.distil(settings(taught), folder, tmp_path / "run")
    assert modes == [{True}] * 8  # 4 batches, twice


def test_a_step_adds_the_distance_and_both_penalties_each_by_its_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batch 1 of 4 in epoch 2: set_epoch gets 2.25."""
    own = student("titles", trimmed_lasso=0.3, balance=0.7)
    teacher, chosen = small_encoder(), {"name": "moesart", "k": 2}
    scores = [torch.arange(12.0) for _ in teacher.layers]
    model = convert(teacher, scores, chosen, experts=4, share=2, units=4)
    module = StudentModule(own, model, teacher)
    trainer: Any = SimpleNamespace(current_epoch=2, global_step=9, num_training_batches=4)
    module.trainer = trainer
    epochs: list[float] = []
    for mixture in module.mixtures:
        monkeypatch.setattr(mixture, "set_epoch", epochs.append)
    seen: list[Seen] = []
    model.register_forward_hook(lambda *call: seen.append(call[-1]))
    text, labels_BT = texts()
    loss = module.training_step((text, labels_BT), 1)
    assert epochs == [2.25, 2.25]  # two layers
    ((logits, hidden, routings),) = seen
    taught = teacher(text)
    distance = hidden_distance(hidden, taught.hidden, text.mask_BL)
    distance = distance + symmetric_kl(logits, taught.logits)
    lasso, balance = torch.zeros(()), torch.zeros(())
    for routing in routings:
        assert routing.probs_BE is not None
        lasso = lasso + trimmed_lasso(routing.probs_BE, 2)
        balance = balance + switch(routing.probs_BE, routing.selected_BE)
    expected = task_loss(logits, labels_BT) + 5 * distance + 0.3 * lasso + 0.7 * balance
    torch.testing.assert_close(loss, expected)


def test_an_interrupted_run_goes_on_to_the_same_bits(
    folder: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(taught)
    straight = train.distil(own, folder, tmp_path / "straight")
    whole, steps = StudentModule.training_step, [0]

    def stops(module: StudentModule, *args: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == 6:  # 4 steps an epoch: in the second
            stop(signal.SIGTERM, None)
        return whole(module, *args)

    monkeypatch.setattr(StudentModule, "training_step", stops)
    with pytest.raises(Interrupted):
        train.distil(own, folder, tmp_path / "stopped")
    resumed = train.distil(own, folder, tmp_path / "stopped")
    for name in ("test", "val", "distilled", "dense", "converted"):
        assert resumed[name] == straight[name]
    with pytest.raises(ConfigError, match="holds .*got 1.*--out"):
        train.distil(dataclasses.replace(own, k=1), folder, tmp_path / "stopped")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--routers", "topk,moesrat"], "did you mean 'moesart'"),
        (["--routers", "topk,thor"], "router ... got thor"),
        (["--k", "9"], "got 9"),
        (["--units", "0"], "--units ... got 0"),
        (["--share", "2000"], "--share ... --units=128, got 2000"),
        (["--set", "temperature=[1"], "--set temperature=[1 ... YAML"),
    ],
)
def test_a_study_that_cannot_be_ends_before_its_teacher_is_trained(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    out = tmp_path / "out"
    assert compare.main(["--data", str(folder), "--out", str(out), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and tells(line, said) and not out.exists()


def test_a_study_repeats_nothing_and_its_page_is_what_its_csv_gives(
    folder: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", str(folder), "--out", str(tmp_path / "out"), "--teacher", str(taught)]
    words += [*QUICK, "--routers", "topk,hash", "--seeds", "2"]
    assert compare.main(words) == 0
    monkeypatch.setattr(train, "fit", None)  # would fail
    assert compare.main(words) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert [(row["label"], row["seed"]) for row in rows] == [
        *(("hash", "0"), ("hash", "1"), ("topk", "0"), ("topk", "1"))
    ]
    text = (tmp_path / "out" / "table.md").read_text()
    assert table(rows, ["topk", "hash"]) == text
    assert [line.split(" | ")[:3] for line in text.splitlines()[2:]] == [
        ["| topk", "2", "2"],
        ["| hash", "1", "2"],
    ]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- moebert -->\nold\n<!-- /moebert -->\nafter\n")
    write_page([str(tmp_path / "out" / "results.csv"), str(page)])
    assert page.read_text() == (f"before\n<!-- moebert -->\n{text}<!-- /moebert -->\nafter\n")
    assert (tmp_path / "out" / "figure.svg").exists()


def test_a_table_gives_means_standard_errors_and_the_distance_to_the_teacher() -> None:
    """Below the teacher: 90 - 88 = 2 and 90 - 86 = 4: mean 3, error sqrt(2) / sqrt(2) = 1."""
    row = {"label": "topk", "k": 2, "teacher_accuracy": 0.9, "converted_accuracy": 0.5}
    row |= {"distilled_agreement": 0.95, "distilled_kl": 0.25, "dense_accuracy": "", "dense_kl": ""}
    rows = [{**row, "distilled_accuracy": accuracy} for accuracy in (0.88, 0.86)]
    assert table(rows).splitlines()[2] == (
        "| topk | 2 | 2 | 90.00 | 50.00 +- 0.00 | 87.00 +- 1.00 | 3.00 +- 1.00 | 95.00 +- 0.00 | "
        "0.25 +- 0.00 |  |  |"
    )


def test_a_teacher_remembers_its_size_and_where_it_started(
    folder: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def teach(*words: object) -> int:
        given = ("--data", folder, "--epochs", 1, "--batch-size", 8, "--out", tmp_path / "out")
        return teacher.main([str(word) for word in (*given, *words)])

    assert teach("--from", taught) == 0
    asked = json.loads((tmp_path / "out" / "settings.json").read_text())
    weights = (taught / "model.safetensors").read_bytes()
    assert asked["start"] == str(taught)
    assert asked["start_sha256"] == hashlib.sha256(weights).hexdigest()
    capsys.readouterr()
    assert teach("--lr", 5e-5) == 2  # the rate is that of a start from a checkpoint
    assert "holds a run with" in capsys.readouterr().err
    assert teach("--from", tmp_path) == 2
    assert f"--from {tmp_path} has no model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--router", "moesrat"], 2, "did you mean 'moesart'"),
        (["--router", "hash", "--trimmed-lasso", "1"], 2, "router hash"),
        (["--router", "thor"], 2, "router ... got thor"),
        (["--k", "5"], 2, "got 5"),
        (["--share", "20"], 2, "--share ... --units=16, got 20"),
        (["--units", "0"], 2, "--units ... got 0"),
        (["--teacher", "nowhere"], 2, "--teacher nowhere has no model.safetensors"),
        (["--data", "nowhere"], 3, "nowhere has no movies.dat or u.item"),
        (["--task", "rte"], 3, "classifier.weight ... [2, 16], got [4, 16]"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    folder: Path,
    taught: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    out = tmp_path / "out" / "run"
    assert run("--data", folder, "--teacher", taught, "--out", out, *words) == code
    error = capsys.readouterr().err
    assert tells(error, said) and error.startswith("error: ") and len(error.splitlines()) == 1
    assert not out.exists()
