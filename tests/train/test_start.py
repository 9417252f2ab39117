"""`fit --from`: a run starts from the model of another one, and means by its weights the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_prep.table import prepare
from recsys_moe import Predictor
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.artifact.run_folder import record_run
from recsys_moe.config.settings import parse_config
from recsys_moe.files import sha256_file
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, Command

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
    return {"model": model, "trainer": trainer, "data": {"unseen_rate": 0.05}, **sections}


def once(**sections: Any) -> dict[str, Any]:
    """What a second run asks for: one epoch, and all else as it was."""
    return {**sections, "trainer": {"max_epochs": 1, **sections.get("trainer", {})}}


def known_scores(model: Path) -> Tensor:
    """Of every pair that both know: (tasks, pairs)."""
    pairs = [(user, item) for user in KNOWN_USERS for item in KNOWN_ITEMS]
    users, items = ([*ids] for ids in zip(*pairs, strict=True))
    scores = Predictor.load(model).score(users=users, items=items)
    assert not any(map(any, (scores.unseen_user, scores.unseen_item)))
    return torch.stack([torch.as_tensor(values) for values in scores.tasks.values()])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"optim": {"lr": 1e-30, "embeddings": "lazy"}},
        {"optim": {"lr": 1e-30, "average": 0.9, "schedule": "cosine"}},
        {"optim": {"lr": 1e-30, "losses": "absolute"}, "tasks": {"rating": {"weight": 3.0}}},
    ],
    ids=["as it was", "lazy tables", "averaged", "other losses"],
)
def test_scores_of_known_pairs_are_those_of_the_old_model_before_the_first_step(
    folder: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    fit(once(**{**STILL, **more}), folder / "new/data", tmp_path / "b", start_from=folder / "a")
    found, wanted = known_scores(tmp_path / "b"), known_scores(folder / "a")
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    assert wanted.std(1).min() > 0.01  # they differ from pair to pair
