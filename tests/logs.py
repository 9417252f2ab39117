"""Made-up logs as strangers bring them: raw rows, ids in text, other scales than MovieLens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

TASTES = 4


def ratings_to_10(path: Path, *, users: int = 300, items: int = 400, seed: int = 0) -> None:
    """`member,title,stars`, 1 to 10: what is rated follows popularity and taste, stars as well."""
    rng = np.random.default_rng(seed)
    user, item = rng.normal(size=(users, TASTES)) / 2, rng.normal(size=(items, TASTES))
    fame = 1.2 * rng.normal(size=items)
    rated = rng.lognormal(mean=3.7, sigma=0.8, size=users).astype(int).clip(8, items // 2)
    parts = []
    for one in range(users):
        fit = item @ user[one]
        chosen = np.argsort(-(fame + 2 * fit + rng.gumbel(size=items)))[: rated[one]]
        mean = 6.5 + 0.9 * rng.normal() + 0.5 * fame[chosen] + 1.2 * fit[chosen]
        stars = np.rint(mean + rng.normal(size=len(chosen))).clip(1, 10).astype(int)
        titles = [f"t{index:04d}" for index in chosen]
        parts.append(pd.DataFrame({"member": f"m{one:04d}", "title": titles, "stars": stars}))
    pd.concat(parts).to_csv(path, index=False)


def rare_clicks(path: Path, *, users: int = 2000, items: int = 800, seed: int = 0) -> None:
    """`visitor,page,clicked`: 50 impressions each, of which about 2% are clicked."""
    rng = np.random.default_rng(seed)
    user, item = rng.normal(size=(users, TASTES)) / 2, rng.normal(size=(items, TASTES))
    quality, eager = 0.8 * rng.normal(size=items), 0.5 * rng.normal(size=users)
    shown = rng.lognormal(size=items)
    parts = []
    for one in range(users):
        chosen = rng.choice(items, size=50, replace=False, p=shown / shown.sum())
        odds = np.exp(eager[one] + quality[chosen] + item[chosen] @ user[one] - 4.9)
        clicked = (rng.random(50) < odds / (1 + odds)).astype(int)
        pages = [f"p{index}" for index in chosen]
        parts.append(pd.DataFrame({"visitor": f"v{one}", "page": pages, "clicked": clicked}))
    pd.concat(parts).to_csv(path, index=False)


def drifting(path: Path, *, span: float, users: int, events: int, seed: int = 0) -> None:
    """`person,thing,time,score`: a person stays for `span` of the log's time, about so many events.

    What comes next follows the group of the last thing, and the things that are new at the time.
    """
    rng = np.random.default_rng(seed)
    items, groups = 250, 8
    group, fame, rise = rng.integers(groups, size=items), rng.normal(size=items), rng.random(items)
    quality, rows = 0.6 * rng.normal(size=items), []
    for one in range(users):
        start, level = rng.random() * (1 - span), 0.5 * rng.normal()
        count = int(np.clip(rng.lognormal(np.log(events), 0.7), 1, items // 4))
        now, is_free = rng.integers(groups), np.ones(items, dtype=bool)
        for moment in np.sort(start + span * rng.random(count)):
            now = (
                rng.integers(groups)
                if rng.random() < 0.1
                else (now + (rng.random() < 0.2)) % groups
            )
            odds = fame + 2.5 * (group == now) - 4 * np.abs(rise - moment) + rng.gumbel(size=items)
            item = int(np.where(is_free, odds, -np.inf).argmax())
            is_free[item] = False
            score = 3.5 + level + quality[item] + 0.8 * rng.normal()
            stars = int(np.clip(np.rint(score), 1, 5))
            rows.append((f"p{one}", f"g{item}", 1_600_000_000 + int(moment * 3e7), stars))
    frame = pd.DataFrame(rows, columns=["person", "thing", "time", "score"])
    frame.to_csv(path, index=False)


def heavy_tails(path: Path, *, users: int = 400, items: int = 200, seed: int = 0) -> None:
    """`visitor,clip,liked,plays,seconds,stars`: 40 clips a visitor, seconds of those played."""
    rng = np.random.default_rng(seed)
    user, item = rng.normal(size=(users, TASTES)) / 2, rng.normal(size=(items, TASTES))
    length, parts = rng.lognormal(4, 1, size=items), []
    for one in range(users):
        chosen = rng.choice(items, size=40, replace=False)
        fit = item[chosen] @ user[one]
        plays = rng.poisson(np.exp(0.8 * fit - 0.5))
        seconds = length[chosen] * rng.lognormal(0.6 * fit - 1, 1)
        columns = {
            "visitor": f"v{one}",
            "clip": [f"c{index}" for index in chosen],
            "liked": (fit + rng.logistic(size=40) > 0.5).astype(int),
            "plays": plays,
            "seconds": np.where(plays > 0, seconds.round(1) + 0.1, np.nan),
            "stars": np.rint(3 + fit + 0.7 * rng.normal(size=40)).clip(1, 5).astype(int),
        }
        parts.append(pd.DataFrame(columns))
    pd.concat(parts).to_csv(path, index=False)
