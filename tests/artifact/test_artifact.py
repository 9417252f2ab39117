"""The versions of the model folder: older ones are lifted, newer ones refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from recsys_moe.artifact.export import export
from recsys_moe.artifact.model_folder import (
    FORMAT_VERSION,
    MIGRATIONS,
    load_artifact,
    save_artifact,
)
from recsys_moe.errors import DataError
from recsys_moe.files import sha256_file
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.score_files import predict_file

SEEN = "seen.safetensors"


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


@pytest.fixture
def version_1(model: Path) -> Path:
    """The folder as version 1 wrote it: no calibration."""
    (model / "calibration.json").unlink()
    edit_manifest(model, format_version=1)
    return model


def edit_manifest(model: Path, **changes: object) -> None:
    """Change entries, and make the hashes right again for the files that are there."""
    manifest = json.loads((model / "manifest.json").read_text())
    hashes = {p.name: sha256_file(p) for p in model.iterdir() if p.name in manifest["files"]}
    (model / "manifest.json").write_text(json.dumps({**manifest, "files": hashes, **changes}))


def test_every_older_version_has_one_step_up() -> None:
    assert list(MIGRATIONS) == list(range(1, FORMAT_VERSION))


def test_version_1_loads_scores_alike_and_has_no_calibrated_probability(
    version_1: Path, run: Path, tmp_path: Path
) -> None:
    old, new = Predictor.load(version_1), Predictor.load(run)
    assert old.artifact.calibration == {} and set(new.artifact.calibration) == {"watch"}
    first, second = old.score([1], [2]), new.score([1], [2])
    torch.testing.assert_close(first.tasks, second.tasks, rtol=0, atol=0)
    assert first.calibrated == {} and set(second.calibrated) == {"watch"}
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item\n1,2\n")
    predict_file(old, pairs, tmp_path / "scores.csv")
    header = (tmp_path / "scores.csv").read_text().splitlines()[0]
    assert header == "user,item,watch,rating,unseen_user,unseen_item"


def test_loading_rewrites_nothing_and_export_writes_the_current_version(
    version_1: Path, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in version_1.iterdir()}
    export(version_1, tmp_path / "lean")
    assert {path.name: path.read_bytes() for path in version_1.iterdir()} == before
    manifest = json.loads((tmp_path / "lean" / "manifest.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION
    assert load_artifact(tmp_path / "lean").calibration == {}


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, True, "2", 1.0, None])
def test_a_version_that_is_not_known_is_refused(model: Path, version: object) -> None:
    edit_manifest(model, format_version=version)
    with pytest.raises(DataError, match=r"format_version must be in 1\.\.\d, got .*; use the"):
        load_artifact(model)


def test_a_calibration_that_cannot_be_one_is_refused_by_name(model: Path) -> None:
    for content in ({"watch": {"logits": [0]}}, [1]):
        (model / "calibration.json").write_text(json.dumps(content))
        edit_manifest(model)
        with pytest.raises(DataError, match=r"calibration\.json is damaged"):
            load_artifact(model)


def test_another_user_of_the_machine_may_read_what_the_folder_lets_them(model: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in model.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_a_rename_that_fails_leaves_the_older_model_in_place(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = shutil.copytree(model, tmp_path / "old")
    (old / "of-the-older-one.txt").write_text("precious")
    artifact, rename = load_artifact(model), os.replace
    weights, seen = artifact.model.state_dict(), artifact.seen
    for last in ("export", "model"):  # what export and save_artifact call the new folder

        def failing(source: Path, target: Path, last: str = last) -> None:
            if Path(source).name == last:
                raise OSError("the disk is gone")
            rename(source, target)

        monkeypatch.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="the disk is gone"):
            if last == "export":
                export(model, old, overwrite=True)
            else:
                save_artifact(old, weights, artifact.config, model, seen, {}, {})
        assert (old / "of-the-older-one.txt").read_text() == "precious"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "old"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("users.parquet", b"no"),
        ("items.parquet", b"PAR1 and so on PAR1"),
        ("seen.safetensors", b"no"),
        ("weights.safetensors", b"no"),
        ("card.json", b"[" * 100_000),
        ("card.json", b"[]"),
        ("calibration.json", b"[" * 100_000),
        ("schema.json", b"[" * 100_000),
        ("schema.json", b"\xff"),
        ("config.yaml", b"[" * 1500),
        ("config.yaml", b"model: &a {}\noptim: *a\n"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_whole_file_that_cannot_be_read_is_refused_by_name(
    model: Path, name: str, content: bytes
) -> None:
    (model / name).write_bytes(content)
    edit_manifest(model)
    with pytest.raises(DataError, match=f"{name} (is damaged|does not fit)") as caught:
        load_artifact(model)
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_each_other_are_refused_by_name(model: Path) -> None:
    seen = load_file(model / "seen.safetensors")
    users = pq.read_table(model / "users.parquet")
    beyond = {**seen, "items": torch.full_like(seen["items"], 10**6)}
    for other in ({"items": seen["items"]}, {**seen, "offsets": seen["offsets"][:-1]}, beyond):
        save_file({key: value.contiguous() for key, value in other.items()}, model / SEEN)
        edit_manifest(model)
        with pytest.raises(DataError, match=r"seen\.safetensors is damaged"):
            load_artifact(model)
    save_file(seen, model / SEEN)
    for table in (users.slice(1), users.rename_columns(["who", *users.column_names[1:]])):
        pq.write_table(table, model / "users.parquet")
        edit_manifest(model)
        with pytest.raises(DataError, match=r"users\.parquet is damaged: it must have .* 60 rows"):
            load_artifact(model)


def test_a_manifest_nested_without_end_is_damaged(model: Path) -> None:
    (model / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        load_artifact(model)
