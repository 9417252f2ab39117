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
