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


def runs_again() -> bool:
    """Whether this is the second run of a segment, in which nothing must be counted twice."""
    return _may_be_checkpointed() and any(s.run is not None for s in _segments())


def _next_note(key: object, segment: Segment) -> Any:
    log = vars(segment.owner).get(LOG, {})
    position = log.get((key, segment.run), 0)
    log[key, segment.run] = position + 1
    notes = log.get(key, [])
    if position >= len(notes):
        raise RuntimeError(
            "a checkpointed segment must draw as often when it runs again, got a draw more than "
            f"the {len(notes)} of its first run; make its function do the same in both runs"
        )
    return notes[position]


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
        code = frame.f_code
        if code.co_filename == module.__file__ and code.co_name in _READERS:
            segment = _READERS[code.co_name](frame.f_locals)
            if segment is not None:
                yield segment
        frame = frame.f_back  # type: ignore[assignment]


def _without_reentrance(names: Mapping[str, Any]) -> Segment | None:
    generator = names.get("gen")  # None with use_reentrant=True
    return generator and Segment(generator.gi_frame.f_locals["new_frame"], None)


_READERS: dict[str, Callable[[Mapping[str, Any]], Segment | None]] = {
    "forward": lambda names: Segment(names["ctx"], None),
    "backward": lambda names: Segment(names["ctx"], torch._C._current_graph_task_id()),
    "checkpoint": _without_reentrance,
    "unpack_hook": lambda names: Segment(names["frame"], names["gid"]),
}
"""By the name of a function of torch.utils.checkpoint: the segment it runs."""


def refuse_unknown_reruns() -> None:
    """Raise RuntimeError inside a backward pass, whose caller knows no segment that runs again."""
    if _is_backward():
        raise RuntimeError(
            "a layer must be in evaluation mode inside a backward pass, got training mode: its "
            "draws would not be those of the forward pass; use torch.utils.checkpoint.checkpoint, "
            "whose second run it follows, or layer.eval()"
        )
