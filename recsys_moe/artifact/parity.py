"""Compares the predictions of another runtime with those of the model.

Two runtimes round differently, so where two experts are tied for the last place among the chosen
they may choose differently, and that row's prediction jumps. Such rows are set aside by the gate's
margin, counted and reported; all others must agree.

Axes: B batch, E experts, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.config.encoders import chosen_context
from recsys_moe.data.item_past import Known
from recsys_moe.errors import RunError
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Events, Moment, Request
from recsys_moe.routers import Router, Routing
from recsys_moe.routers.joint import log_mixture

TOLERANCE = 1e-5
"""Largest difference, absolute for predictions up to 1 in size and relative above."""
NEAR_TIE = 1e-5
"""Rows whose gap in logits between the last chosen expert and the next is below this."""
MAX_MASKED = 0.01
"""Largest share of near-ties; with more the comparison says too little."""
BATCH_SIZES = (0, 1, 2, 37, 1000)
EVENT_INPUTS = ("event_item", "event_value", "event_time", "event_count")
"""The last inputs of models that read events."""
BATCHES = 3
"""Compared per batch size, from different rows."""

Runner = Callable[..., Sequence[Tensor]]
"""The inputs of a graph, as `parity_rows` has them -> the outputs, (B, T) each."""


def parity_rows(artifact: Artifact) -> tuple[Tensor, ...]:
    """Indices of pairs, drawn with seed 0: half positives of training, half any user and item.

    The spare rows for unseen ids are among them, together and each with a known id. For models with
    context features, their values too: any category, unknown and missing ones among them. For
    models that read events, any number of any events, and anything behind them. For models that
    read the time, any time since 1970, or none.
    """
    generator = torch.Generator().manual_seed(0)
    rows, schema = sum(BATCH_SIZES) * BATCHES, artifact.schema

    def draw(size: int) -> Tensor:
        return torch.randint(max(size, 1), (rows,), generator=generator)

    user, item = draw(schema.user.size + 1), draw(schema.item.size + 1)
    offsets, items = artifact.seen["offsets"].long(), artifact.seen["items"].long()
    if len(items):
        positive = draw(len(items))
        half = torch.arange(rows) % 2 == 0
        owner = torch.searchsorted(offsets, positive, right=True) - 1
        user, item = torch.where(half, owner, user), torch.where(half, items[positive], item)
    user[:2], item[1:3] = schema.user.size, schema.item.size
    context = [
        torch.randn(rows, generator=generator) if one.kind == "numeric" else draw(one.size + 1)
        for one in chosen_context(artifact.config, schema)
    ]
    inputs = [user, item]
    if context:
        value_BC = torch.stack([one.float() for one in context], 1)
        is_missing_BC = torch.rand(value_BC.shape, generator=generator) < 1 / 8
        inputs.append(value_BC.masked_fill(is_missing_BC, torch.nan))
    model = artifact.config.model
    if model.reads_events:
        inputs += _events(rows, artifact, generator)
    if model.chosen_times:
        time_B = 2e9 * torch.rand(rows, generator=generator).double()
        is_missing_B = torch.rand(rows, generator=generator) < 1 / 8
        inputs.append(time_B.floor().masked_fill(is_missing_B, torch.nan))
    return (*inputs,)


def _events(rows: int, artifact: Artifact, generator: torch.Generator) -> list[Tensor]:
    """Items, values and times (B, L) and the number of events (B,)."""
    shape = rows, artifact.config.model.sequence_length
    item_BL = torch.randint(artifact.schema.item.size + 1, shape, generator=generator)
    value_BL = torch.randn(shape, generator=generator)
    value_BL[torch.rand(shape, generator=generator) < 1 / 8] = torch.nan
    gap_BL = 10 ** (8 * torch.rand(shape, generator=generator).double())
    gap_BL[torch.rand(shape, generator=generator) < 1 / 8] = 0.0
    count_B = torch.randint(shape[1] + 1, (rows,), generator=generator)
    return [item_BL, value_BL, gap_BL.cumsum(1).floor(), count_B]


def as_request(inputs: Sequence[Tensor], items: Known | None = None) -> Request:
    """What the inputs of a graph ask: users, items, the context, four of events, and the time,
    which alone is (B,) float64. `items`: of models that read their age or popularity."""
    user_B, item_B, *more = inputs
    events = time_B = None
    if more and more[-1].dim() == 1 and more[-1].dtype == torch.float64:
        time_B = more.pop()
    if len(more) >= len(EVENT_INPUTS):
        *more, item_BL, value_BL, time_BL, count_B = more
        own_B = torch.arange(user_B.shape[0], device=user_B.device)
        events = Events(item_BL, value_BL, time_BL, own_B, count_B)
    moment = None if time_B is None else Moment.of(time_B, events, items).about(item_B)
    return Request(user_B, item_B, more[0] if more else None, events, moment=moment)


@torch.inference_mode()
def check_parity(
    name: str, runner: Runner, reference: Runner, artifact: Artifact
) -> dict[str, Any]:
    """Compare at all BATCH_SIZES; what was compared, and the largest difference.

    Raises RunError where a row differs or too many are near-ties.
    """
    inputs = parity_rows(artifact)
    rows = masked = start = 0
    largest = 0.0
    for size in BATCH_SIZES * BATCHES:
        batch = [one[start : start + size] for one in inputs]
        tied_B = near_ties(artifact.model, as_request(batch, artifact.past))
        difference_B = _differences(name, runner(*batch), reference(*batch))
        compared_B = difference_B[~tied_B]
        if len(compared_B):
            largest = float(compared_B.new_tensor(largest).maximum(compared_B.max()))  # keeps NaN
        rows, masked, start = rows + size, masked + int(tied_B.sum()), start + size
    if masked > MAX_MASKED * rows:
        raise RunError(
            f"{name}: at most {MAX_MASKED:.0%} of the rows may be near-ties of the gate, got "
            f"{masked} of {rows}; the experts are too similar: train the model further"
        )
    if not largest <= TOLERANCE:
        raise RunError(
            f"{name}: predictions must agree with the model within {TOLERANCE}, got a difference "
            f"of {largest:.3g}; omit this format and report a bug"
        )
    return {
        "rows": rows,
        "masked_near_ties": masked,
        "max_difference": largest,
        "tolerance": TOLERANCE,
        "batch_sizes": list(BATCH_SIZES),
    }


def _differences(name: str, given: Sequence[Tensor], expected: Sequence[Tensor]) -> Tensor:
    """Largest difference per row over outputs and tasks, relative above 1. (B,) float64."""
    shapes = [tuple(out.shape) for out in given], [tuple(out.shape) for out in expected]
    if shapes[0] != shapes[1]:
        raise RunError(
            f"{name}: outputs must have the shapes {shapes[1]}, got {shapes[0]}; "
            "omit this format and report a bug"
        )
    parts = []
    for given_BT, expected_BT in zip(given, expected, strict=True):
        scale_BT = expected_BT.double().abs().clamp(min=1)
        parts.append(((given_BT.double() - expected_BT.double()).abs() / scale_BT).amax(1))
    return torch.stack(parts).amax(0)


@torch.inference_mode()
def near_ties(model: Recommender, request: Request) -> Tensor:
    """bool (B,): rows where rounding could change which experts some task's router chooses."""
    tied_B = torch.zeros(request.rows, dtype=torch.bool)
    routings = model(request).routings
    for router, routing in zip(model.routers, routings, strict=True):
        scores_BE = _scores(router, routing, lambda: model.encode(request))
        if scores_BE is not None:
            tied_B |= _is_close(scores_BE, routing)
    shared_BE = routings[0].shared_BE if routings else None
    if shared_BE is not None:
        logits = [routing.logits_BE for routing in routings if routing.logits_BE is not None]
        tied_B |= _is_close(log_mixture(logits), Routing(shared_BE.float(), shared_BE))
    return tied_B


def _scores(router: Router, routing: Routing, encoded: Callable[[], Tensor]) -> Tensor | None:
    """What the router chooses the largest of, up to a constant per row; None: it does not."""
    if routing.logits_BE is not None and routing.shared_BE is not None:
        return routing.logits_BE.masked_fill(~routing.shared_BE, -torch.inf)
    if routing.logits_BE is not None:
        return routing.logits_BE
    if routing.probs_BE is not None:
        return routing.probs_BE.log()
    # BASE publishes no probabilities and chooses by the scores of its gate.
    gate = getattr(router, "gate", None)
    return None if gate is None else gate(encoded())


def _is_close(scores_BE: Tensor, routing: Routing) -> Tensor:
    """bool (B,). A chosen expert whose weight is about 0 may leave without a jump."""
    chosen_BE = routing.selected_BE
    last_B = scores_BE.masked_fill(~chosen_BE, torch.inf).min(-1)
    next_B = scores_BE.masked_fill(chosen_BE, -torch.inf).amax(-1)
    weight_B = routing.weights_BE.gather(-1, last_B.indices[:, None])[:, 0]
    return (last_B.values - next_B < NEAR_TIE) & (weight_B > TOLERANCE)
