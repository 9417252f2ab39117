"""What a checkpointed segment has to do alike when `torch.utils.checkpoint` runs it again.

torch (2.8 to 2.13) restores its own generators for the second run and not private ones, and says
nowhere that a segment runs, which one it is, or whether it runs again. So this file reads it from
the frames of its functions; it can go when torch has a public way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Noted = TypeVar("Noted")

LOG = "_recsys_moe_notes"
"""Attribute of a segment's owner: what its first run noted."""


class Segment(NamedTuple):
    """A checkpointed segment that is running."""

    owner: Any
    """The object in which torch keeps what the second run needs; the same in both runs."""
    run: int | None
    """Number of the backward pass that runs it again; None in the first run."""


def replayed(key: object, now: Callable[[], Noted]) -> Noted | None:
    """What `now()` was at the same call in the first run; None where nothing runs again.

    `key`: who asks; its n-th call in a segment is answered with what its n-th call noted. A first
    run notes `now()`, or what an outer segment that runs again answers.
    Raises RuntimeError where nothing was noted.
    """
    if not _may_be_checkpointed():
        return None
    around = list(_segments())
    again = [segment for segment in around if segment.run is not None]
    found = _next_note(key, again[0]) if again else None
    first = [segment for segment in around if segment.run is None]
    if first:
        note = now() if found is None else found
        for segment in first:
            vars(segment.owner).setdefault(LOG, {}).setdefault(key, []).append(note)
    return found


def count_once(total: Tensor | None, more: Tensor) -> Tensor | None:
    """`total` and `more`, or in a second run `total`, so that nothing is counted twice.

    Both runs add: selective checkpointing tells operations by how often each ran before.
    """
    added = more + (0 if total is None else total)
    return total if _runs_again() else added


def _next_note(key: object, segment: Segment) -> Any:
    log = vars(segment.owner).get(LOG)
    if log is None:
        raise RuntimeError(
            "a layer in training mode must be checkpointed by checkpoint or checkpoint_sequential "
            "of torch.utils.checkpoint, or a wrapper that calls them, got another, whose first run "
            "cannot be followed; use one of them"
        )
    position = log.get((key, segment.run), 0)
    log[key, segment.run] = position + 1
    notes = log.get(key, [])
    if position >= len(notes):
        raise RuntimeError(
            "a checkpointed segment must draw as often when it runs again, got a draw more than "
            f"the {len(notes)} of its first run; make its function do the same in both runs"
        )
    return notes[position]


def _runs_again() -> bool:
    return _may_be_checkpointed() and any(s.run is not None for s in _segments())


def _may_be_checkpointed() -> bool:
    """False where a walk over the frames, some 20 microseconds a draw, would find nothing."""
    if torch.compiler.is_compiling():
        return False
    hooks: object = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None or not torch.is_grad_enabled() or _is_backward()


def _is_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _segments() -> Iterator[Segment]:
    """Those around the caller, innermost first."""
    module = sys.modules.get("torch.utils.checkpoint")
    if module is None:
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == module.__file__:
            yield from _segments_of(frame.f_code.co_name, frame.f_locals)
        frame = frame.f_back  # type: ignore[assignment]


def _segments_of(function: str, names: Mapping[str, Any]) -> list[Segment]:
    """That which a function of torch.utils.checkpoint runs, if any; `names`: its variables."""
    return [
        reader(names)
        for (reads, variable), reader in _READERS.items()
        if reads == function and variable in names
    ]


_READERS: dict[tuple[str, str], Callable[[Mapping[str, Any]], Segment]] = {
    ("forward", "ctx"): lambda names: Segment(names["ctx"], None),
    ("backward", "ctx"): lambda names: Segment(names["ctx"], torch._C._current_graph_task_id()),
    ("checkpoint", "gen"): lambda names: Segment(names["gen"].gi_frame.f_locals["new_frame"], None),
    ("unpack_hook", "frame"): lambda names: Segment(names["frame"], names["gid"]),
}
"""By the name of a function, and a variable that others of that name do not have: what it runs."""


def refuse_unknown_reruns() -> None:
    """Raise RuntimeError inside a backward pass, whose caller knows no segment that runs again."""
    if _is_backward():
        raise RuntimeError(
            "a layer must be in evaluation mode inside a backward pass, got training mode: its "
            "draws would not be those of the forward pass; use checkpoint or checkpoint_sequential "
            "of torch.utils.checkpoint, whose second run it follows, or layer.eval()"
        )
