"""What are scores worth that lack the context which every training row had?

    python -m research.context_missing --work DIR --raw ML-100K --seeds 1

Two logs: watch time that hour and device decide (made up), and MovieLens-100K's first 150 users by
hour and day. Per share of `data.context_dropout`, and for a model that reads no context: the test
loss with the context, without one feature, without any, and mean prediction over mean label of the
second task with and without. "centred": no dropout, and the mean of each feature's embeddings moved
to the users' vectors, so that a missing one equals the mean.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from data_prep import table
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.config.auto import with_choices
from recsys_moe.config.encoders import chosen_context
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Columns, load_columns
from recsys_moe.kinds import by_task, kind_of
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit

USERS, ITEMS, ROWS, HOURS = 300, 200, 14_000, 8
SHARES = ("0", "0.1", "0.2", "none")
LOST = {"all": [], "no first": [0], "no second": [1], "none": [0, 1]}


def watch_time() -> pd.DataFrame:
    """Items are taken at the hour of their group; seconds go by taste, hour and device."""
    r = np.random.default_rng(0)
    a, b = r.normal(size=(USERS, 4)) * 0.6, r.normal(size=(ITEMS, 4)) * 0.6
    shares = np.array([1, 1, 1, 2, 3, 5, 6, 4.0])
    user = r.integers(USERS, size=ROWS)
    hour, device = (
        r.choice(HOURS, ROWS, p=shares / shares.sum()),
        r.choice(3, ROWS, p=[0.6, 0.3, 0.1]),
    )
    is_of_hour = np.arange(ITEMS) % HOURS == hour[:, None]
    item = (a[user] @ b.T + 3 * is_of_hour + r.gumbel(size=(ROWS, ITEMS))).argmax(1)
    log_mean = 0.7 * (a[user] * b[item]).sum(1) + np.linspace(-0.7, 0.7, HOURS)[hour]
    log_mean += np.array([-0.5, 0.9, 0.0])[device] + 0.5 * (item % HOURS == hour)
    seconds = r.gamma(0.7, 60 * np.exp(log_mean) / 0.7).clip(1)
    names = {"user": user, "item": item, "first": hour, "second": device, "label": seconds}
    return pd.DataFrame(names).drop_duplicates(["user", "item"])


def movielens(raw: Path) -> pd.DataFrame:
    names = ["user", "item", "label", "time"]
    rows = pd.read_csv(raw / "u.data", sep="\t", names=names).query("user <= 150")
    when = pd.to_datetime(rows.pop("time"), unit="s")
    return rows.assign(first=when.dt.hour, second=when.dt.day_of_week)


def prepared(log: pd.DataFrame, folder: Path, kind: str) -> Path:
    if not folder.exists():
        log.to_csv(folder.with_suffix(".csv"), index=False)
        context = [f"{name}:categorical={name}" for name in ("first", "second")]
        options: dict[str, Any] = {"user": "user", "item": "item", "negatives": "per-user"}
        tasks = ["watch:binary", f"label:{kind}=label"]
        log_file = folder.with_suffix(".csv")
        table.prepare(folder, input=log_file, tasks=tasks, context=context, **options)
    return folder


def trained(data: Path, share: str, seed: int) -> Artifact:
    run = data.with_name(f"{data.name}-{share}-{seed}")
    if not run.exists():
        plain = {"model": {"context": "none"}}
        asked = plain if share == "none" else {"data": {"context_dropout": float(share)}}
        asked = {**asked, "trainer": {"seed": seed}}
        fit(with_choices(asked, Schema.load(data), everything=True)[0], data, run)
    return load_artifact(run / "model")


@torch.no_grad()
def centre(artifact: Artifact, rows: Columns) -> None:
    """Move the training mean of each feature's embeddings to the users."""
    model, start = artifact.model, 0
    for place, one in enumerate(chosen_context(artifact.config, artifact.schema)):
        assert rows.context is not None
        share_R = torch.bincount(rows.context[:, place].long(), minlength=one.size).float()
        table_RD = model.encoders.context.table_RD[start : start + one.size]  # type: ignore
        mean_D = share_R / share_R.sum() @ table_RD
        table_RD -= mean_D
        model.user_embedding.weight += mean_D  # type: ignore[operator]
        start += one.size + 1


@torch.no_grad()
def judged(artifact: Artifact, rows: Columns, lost: list[int]) -> tuple[float, float]:
    """Loss, and mean prediction over mean label of the second task."""
    if rows.context is not None:
        rows = replace(
            rows, context=rows.context.index_fill(1, torch.tensor(lost).long(), torch.nan)
        )
    evaluation, schema = Evaluation(artifact.schema, artifact.config), artifact.schema
    add_rows(evaluation, artifact.model, EvalBatches(rows, 4096), artifact.config)
    kinds = [kind_of(task) for task in schema.tasks]
    logits_B = by_task(artifact.model(rows.request).logits_BT, kinds)[1]
    label_B = rows.labels[:, 1]
    found_B = kinds[1].predictions("label", logits_B)["label"][~label_B.isnan()]
    return evaluation.result("test")["loss"], float(found_B.mean() / label_B.nanmean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True, parents=True)
    logs = {
        "watch": prepared(watch_time(), given.work / "watch", "duration"),
        "movielens": prepared(movielens(given.raw), given.work / "movielens", "regression"),
    }
    print("| log | dropout | " + " | ".join(LOST) + " | mean | mean of none |")
    for log, data in logs.items():
        for share in (*SHARES, "centred"):
            found = [figures(data, share, seed) for seed in range(given.seeds)]
            print(f"| {log} | {share} |", *(f"{x:.4f} |" for x in np.mean(found, axis=0)))


def figures(data: Path, share: str, seed: int) -> list[float]:
    artifact = trained(data, "0" if share == "centred" else share, seed)
    context = chosen_context(artifact.config, artifact.schema)
    if share == "centred":
        centre(artifact, load_columns(data, artifact.schema, "train", context))
    rows = load_columns(data, artifact.schema, "test", context)
    pairs = [judged(artifact, rows, lost) for lost in LOST.values()]
    return [*(loss for loss, _ in pairs), pairs[0][1], pairs[-1][1]]


if __name__ == "__main__":
    main()
