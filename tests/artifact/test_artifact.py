"""The model folder: what it refuses to read, by name, and how it is replaced."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from recsys_moe import folders
from recsys_moe.artifact.export import export
from recsys_moe.artifact.manifest import FORMAT_VERSION, VERSIONS
from recsys_moe.artifact.model_folder import load_artifact, save_artifact
from recsys_moe.errors import DataError
from recsys_moe.files import sha256_file
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import Predictor

SEEN = "seen.safetensors"


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


def edit_manifest(model: Path, **changes: object) -> None:
    """Change entries, and make the hashes right again for the files that are there."""
    manifest = json.loads((model / "manifest.json").read_text())
    hashes = {p.name: sha256_file(p) for p in model.iterdir() if p.name in manifest["files"]}
    (model / "manifest.json").write_text(json.dumps({**manifest, "files": hashes, **changes}))


def test_a_model_without_calibration_scores_alike_and_has_no_calibrated_probability(
    run: Path, tmp_path: Path
) -> None:
    trained, plain = load_artifact(run), tmp_path / "plain"
    weights, seen = trained.model.state_dict(), trained.seen
    save_artifact(
        plain, weights, trained.config, run / "model", seen=seen, card={}, calibrations={}
    )
    export(plain, tmp_path / "lean")
    assert load_artifact(tmp_path / "lean").calibration == {}
    without, calibrated = Predictor.load(tmp_path / "lean"), Predictor.load(run)
    first, second = without.score([1], [2]), calibrated.score([1], [2])
    torch.testing.assert_close(first.tasks, second.tasks, rtol=0, atol=0)
    assert first.calibrated == {} and set(second.calibrated) == {"watch"}
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item\n1,2\n")
    predict_file(without, pairs, tmp_path / "scores.csv")
    header = (tmp_path / "scores.csv").read_text().splitlines()[0]
    assert header == "user,item,watch,rating,unseen_user,unseen_item"


@pytest.mark.parametrize("version", [VERSIONS[-1] + 1, FORMAT_VERSION - 1, 0, True, "2", 2.0, None])
def test_a_version_that_is_not_known_is_refused(model: Path, version: object) -> None:
    edit_manifest(model, format_version=version)
    with pytest.raises(DataError, match="format_version .*got .*"):
        load_artifact(model)


def test_another_user_of_the_machine_may_read_what_the_folder_lets_them(model: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in model.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_a_rename_that_fails_leaves_the_older_model_in_place(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = shutil.copytree(model, tmp_path / "old")
    (old / "model.pt2").write_text("of the older one")
    artifact, rename = load_artifact(model), os.replace
    weights, seen = artifact.model.state_dict(), artifact.seen

    def failing(source: Path, target: Path) -> None:
        if Path(target) == old and Path(source).name == "new":
            raise OSError("the disk is gone")
        rename(source, target)

    monkeypatch.setattr(folders, "_swapped", lambda one, other: False)
    monkeypatch.setattr(os, "replace", failing)
    for write in (
        lambda: export(model, old, overwrite=True),
        lambda: save_artifact(
            old, weights, artifact.config, model, seen=seen, card={}, calibrations={}
        ),
    ):
        with pytest.raises(OSError, match="the disk is gone"):
            write()
        assert (old / "model.pt2").read_text() == "of the older one"
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
        with pytest.raises(DataError, match=r"users\.parquet is damaged: .*60 rows"):
            load_artifact(model)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format_version": 3, "files": 3}'])
def test_a_manifest_that_cannot_be_one_is_damaged(model: Path, content: str) -> None:
    (model / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        load_artifact(model)


def test_histories_of_known_users_travel_with_exports_and_models_of_ids_have_no_such_file(
    featured_run: Path, run: Path, tmp_path: Path
) -> None:
    export(featured_run, tmp_path / "lean")
    file = tmp_path / "lean" / "history.safetensors"
    assert file.read_bytes() == (featured_run / "model" / file.name).read_bytes()
    assert not (run / "model" / file.name).exists()
    artifact = load_artifact(tmp_path / "lean")
    assert len(artifact.history["first"]) == artifact.schema.user.size + 2
    export(featured_run, tmp_path / "lean", overwrite=True)


@pytest.mark.parametrize(
    "change",
    [
        {"row": torch.tensor([10**6], dtype=torch.int32)},
        {"first": torch.tensor([0, 1])},
        {"item_row": torch.tensor([-1], dtype=torch.int32)},
        {"item_row": torch.zeros(1, 1, dtype=torch.int32)},
        {"item_row": torch.zeros(1)},
        {"item_first": torch.tensor([0, 1])},
        {"rows": torch.tensor([0])},
    ],
)
def test_histories_that_do_not_fit_are_refused(
    change: dict[str, torch.Tensor], featured_run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(featured_run / "model", tmp_path / "model"))
    history = load_file(folder / "history.safetensors") | change
    if "rows" in change:
        del history["row"]
    save_file(history, folder / "history.safetensors")
    edit_manifest(folder)
    with pytest.raises(DataError, match=r"history\.safetensors is damaged: "):
        load_artifact(folder)
