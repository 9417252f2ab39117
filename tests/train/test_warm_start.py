"""Warm start (`fit --init-from`): a run starts with the weights of another model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_prep.table import prepare
from recsys_moe import Predictor
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.diff import read_resolved
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import Interrupted
from recsys_moe.files import sha256_file
from recsys_moe.model.biases import Biases
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.fit import fit
from recsys_moe.train.warm_start import start_config
from tests.conftest import TINY_MODEL
from tests.train.test_overwrite import STEP
from tests.train.test_resume import after_signal, results

ROOT = Path(__file__).parents[2]
USERS, ITEMS = (0, 40), (0, 30)
NEW_USERS, NEW_ITEMS = (10, 60), (10, 45)
KNOWN_USERS, KNOWN_ITEMS = [f"u{u}" for u in range(10, 40)], [f"i{i}" for i in range(10, 30)]
"""In the old data and in the new."""
STILL = {"optim": {"lr": 1e-30}}
"""So small a step that no weight changes: what a run then exports is what it started with."""
TASKS = ("watch:binary=watched", "rating:regression=stars")


def table(
    folder: Path,
    users: tuple[int, int] = USERS,
    items: tuple[int, int] = ITEMS,
    *,
    tasks: tuple[str, ...] = TASKS,
    ids: tuple[str, str] = ("u", "i"),
    unit: float = 1.0,
) -> Path:
    """Prepared data of 800 rows; users have tastes, `unit` is that of the stars."""
    draw = random.Random(repr((users, items)))
    lines = {}
    while len(lines) < 800:
        user, item = draw.randrange(*users), draw.randrange(*items)
        watched = int(draw.random() < (0.9 if (user + item) % 2 else 0.2 * (user % 3)))
        stars = unit * (1 + (user * item) % 5) if watched else ""
        lines[user, item] = f"{ids[0]}{user},{ids[1]}{item},{watched},{stars}"
    folder.mkdir(parents=True)
    log = folder / "log.csv"
    log.write_text("\n".join(["user,item,watched,stars", *lines.values()]) + "\n")
    prepare(folder / "data", user="user", item="item", tasks=tasks, input=log)
    return folder / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old/data` with the run `a` on it, and `new/data`, which shares some ids."""
    folder = tmp_path_factory.mktemp("lifecycle")
    table(folder / "new", NEW_USERS, NEW_ITEMS)
    fit(settings(optim={"lr": 1e-2}), table(folder / "old"), folder / "a")
    return folder


def settings(**sections: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 3, "batch_size": 64, **sections.pop("trainer", {})}
    model = {**TINY_MODEL, **sections.pop("model", {})}
    return {"model": model, "trainer": trainer, "data": {"id_dropout": 0.05}, **sections}


def once(**sections: Any) -> dict[str, Any]:
    """What a second run asks for: one epoch, and all else as it was."""
    return {**sections, "trainer": {"max_epochs": 1, **sections.get("trainer", {})}}


def scores(model: Path, users: list[str], items: list[str]) -> Tensor:
    """Of every pair of them: (tasks, pairs)."""
    pairs = [(user, item) for user in users for item in items]
    found = Predictor.load(model).score(*([*ids] for ids in zip(*pairs, strict=True)))
    return torch.stack([*found.tasks.values()])


def known_scores(model: Path) -> Tensor:
    """Of every pair that both know."""
    return scores(model, KNOWN_USERS, KNOWN_ITEMS)


def biases_of(model: Path) -> tuple[Biases, list[str]]:
    """Of an artifact, with its users in order."""
    artifact = load_artifact(model)
    assert artifact.model.biases is not None
    return artifact.model.biases, artifact.users["user"].to_pylist()


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optim": {"lr": 1e-30, "ema_decay": 0.9, "schedule": "cosine"}},
        {
            "optim": {"lr": 1e-30, "loss_normalization": "absolute"},
            "tasks": {"rating": {"weight": 3.0}},
        },
    ],
    ids=["as it was", "averaged", "other losses"],
)
def test_scores_of_known_pairs_are_those_of_the_old_model_before_the_first_step(
    folder: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    fit(once(**{**STILL, **more}), folder / "new/data", tmp_path / "b", init_from=folder / "a")
    found, wanted = known_scores(tmp_path / "b"), known_scores(folder / "a")
    close(found, wanted)
    assert wanted.std(1).min() > 0.01  # they differ from pair to pair


def test_new_ids_start_from_the_oov_embedding(folder: Path, tmp_path: Path) -> None:
    """Without user and item biases a new id is scored as the old model scores an unseen one."""
    plain = {"biases": False}
    old, new = tmp_path / "old", tmp_path / "new"
    fit(settings(model=plain, optim={"lr": 1e-2}), folder / "old/data", old)
    fit(once(**STILL), folder / "new/data", new, init_from=old)
    for users, items in ((["u50"], KNOWN_ITEMS), (KNOWN_USERS, ["i40"]), (["u50"], ["i40"])):
        close(scores(new, users, items), scores(old, users, items))
    close(scores(new, ["nobody"], KNOWN_ITEMS), scores(old, ["u50"], KNOWN_ITEMS))


def test_known_users_keep_the_experts_of_the_hash_router(folder: Path, tmp_path: Path) -> None:
    """And new ones are spread over them, as in any run."""
    router = {"name": "hash", "balanced": True}
    old, new = tmp_path / "old", tmp_path / "new"
    fit(settings(model={"router": router}), folder / "old/data", old)
    fit(once(**STILL), folder / "new/data", new, init_from=old)
    close(known_scores(new), known_scores(old))
    artifact = load_artifact(new)
    users = artifact.users["user"].to_pylist()
    is_new = torch.tensor([user not in KNOWN_USERS for user in users])
    experts = artifact.model.routers[0].state_dict()["expert_U"][:-1][is_new]
    assert len(experts) == 20 and len(experts.unique()) > 1


def test_biases_of_known_ids_stay_and_those_of_new_ids_are_fitted_to_their_rows(
    folder: Path, tmp_path: Path
) -> None:
    """In the units of the old model: its shift and scale, whatever the new labels' mean is."""
    fit(once(**STILL), folder / "new/data", tmp_path / "b", init_from=folder / "a")
    (old, old_users), (new, new_users) = biases_of(folder / "a"), biases_of(tmp_path / "b")
    assert torch.equal(new.shift_T, old.shift_T) and torch.equal(new.scale_T, old.scale_T)
    for user, row_T in zip(new_users, new.user_UT[:-1], strict=True):
        if user in old_users:
            assert torch.equal(row_T, old.user_UT[old_users.index(user)])
        else:
            assert row_T[0] != 0
    assert not new.user_UT[-1].any()  # of the OOV id


def test_training_continues_and_ends_better_than_from_scratch(folder: Path, tmp_path: Path) -> None:
    """After one more epoch, compared with one epoch."""
    data, slow = folder / "new/data", {"optim": {"lr": 1e-4}}
    more = fit(once(**slow), data, tmp_path / "more", init_from=folder / "a")
    anew = fit(settings(**once(**slow)), data, tmp_path / "anew")
    assert more["loss"] < anew["loss"]


def test_the_old_configuration_is_the_start_of_the_new_one(folder: Path) -> None:
    asked = {"model": {"router": "moesart"}, "trainer": {"seed": 3}}
    found = start_config(asked, folder / "a")
    before = parse_config(settings(optim={"lr": 1e-2}))
    trainer = before.trainer.model_copy(update={"seed": 3})
    assert found == before.model_copy(update={"trainer": trainer})


def test_the_run_records_its_model_and_continues_after_a_stop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bytes as without the stop."""
    data, model, out = folder / "new/data", folder / "a/model", tmp_path / "b"
    fit({}, data, tmp_path / "straight", init_from=folder / "a")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 7))
        with pytest.raises(Interrupted):
            fit({}, data, out, init_from=folder / "a")
    fit(parse_config(read_resolved(str(out))), data, out, resume="auto")
    assert results(out) == results(tmp_path / "straight")
    lock = json.loads((out / "data.lock.json").read_text())
    manifest = sha256_file(model / "manifest.json")
    assert lock["from"] == {"folder": str(model.resolve()), "manifest.json": manifest}
