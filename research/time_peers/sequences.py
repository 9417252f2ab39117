"""What peers that are trained on sequences need of a log: its split, windows, lists of scores.

Axes: N events, I items, B sessions, L places; token i + 1 is item i, 0 pads on the left.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from research.time_peers.lists import rank
from research.time_peers.log import CORE, ML_1M_CUT, Log, newest_tenth, read

LENGTH = 200
"""Events of a session, the latest."""
SESSIONS = 512
"""Scored at a time."""
Score = Callable[[Tensor, Tensor], Tensor]
"""Tokens (B, L) and seconds before the last of them (B, L) -> scores (B, I)."""


class Split(NamedTuple):
    """bool (N,) each."""

    fitted: np.ndarray
    chosen: np.ndarray
    """Of each user the last event before the ranked ones: epochs are chosen by them."""
    ranked: np.ndarray


def arguments(doc: str | None) -> tuple[argparse.Namespace, Log, Split]:
    """The command line, the log without items of fewer than five events, and its split."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    folder = parser.add_mutually_exclusive_group(required=True)
    folder.add_argument("--ml-1m", type=Path)
    folder.add_argument("--ml-100k", type=Path)
    parser.add_argument("--protocol", choices=("leave-last", "cut"), default="cut")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--width", type=int, default=256, help="of items and places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where each epoch is kept")
    parser.add_argument("--csv", type=Path, required=True)
    options = parser.parse_args()
    place = options.ml_1m or options.ml_100k
    log = read(place, core=CORE)
    cut = ML_1M_CUT if options.ml_1m else newest_tenth(read(place))
    return options, log, split(log, None if options.protocol == "leave-last" else cut)


def split(log: Log, cut: int | None) -> Split:
    """What is ranked: all events after `cut`, or without one the last of each user."""
    ranked = log.is_last if cut is None else log.after(cut)
    chosen = np.zeros_like(ranked)
    chosen[np.flatnonzero(~ranked)[log.taken(~ranked).is_last]] = True
    return Split(~ranked & ~chosen, chosen, ranked)


def windows(log: Log, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The session before each event of `places`: tokens (B, L), seconds before the last (B, L)."""
    token_BL, ago_BL = np.zeros((2, len(places), LENGTH), np.int64)
    start_U = log.starts
    for row, end in enumerate(places):
        some = slice(max(start_U[log.user[end]], end - LENGTH), end)
        count = some.stop - some.start
        if count:
            token_BL[row, LENGTH - count :] = log.item[some] + 1
            ago_BL[row, LENGTH - count :] = log.time[end - 1] - log.time[some]
    return token_BL, ago_BL


@torch.inference_mode()
def ranks(score: Score, log: Log, ranked: np.ndarray) -> np.ndarray:
    """Of each ranked event, in a list without what its user had before."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    places, found = np.flatnonzero(ranked), []
    first = log.starts[log.user]
    for chunk in np.array_split(places, max(1, len(places) // SESSIONS)):
        sessions = (torch.as_tensor(part, device=device) for part in windows(log, chunk))
        score_BI = score(*sessions).float().cpu().numpy()
        for score_I, end in zip(score_BI, chunk, strict=True):
            found.append(rank(score_I, log.item[end], np.unique(log.item[first[end] : end])))
    return np.array(found)


def write(options: argparse.Namespace, peer: str, found: dict[str, Any]) -> None:
    """Append a line to the CSV; print it."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    data = "ml-1m" if options.ml_1m else "ml-100k"
    named = {"data": data, "protocol": options.protocol, "peer": peer, "seed": options.seed}
    named["device"] = device
    row = named | {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    print(row, flush=True)
    begins = not options.csv.exists()
    with options.csv.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, row, lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerow(row)
