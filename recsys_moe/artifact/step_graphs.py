"""The model as two graphs that follow a user event by event: a step and a scorer.

Equal to the graph of whole windows within 1e-5 while a user has at most `sequence_length` events;
of more, `lru`, `gru` and `decay` remember all, and `attention` of each block the last.

Axes: B rows, T tasks, D width of the embeddings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.graphs import Graph, files_of, graph_of, latency, quiet, traced
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.artifact.parity import EVENT_INPUTS, Runner, check_parity, parity_rows
from recsys_moe.model.encoders.sequence import EventSequence
from recsys_moe.model.request import Request, of_items

VECTOR = "event_vector"


class StepGraph(nn.Module):
    """One event of each row's user: `event_item` (B,) int64, `event_value` (B,) float32,
    `event_time` (B,) float64, `state_0`, ... before it -> `event_vector` (B, D), the state after.

    Before the first event all states are 0, and so is the vector.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        self.model = copy.deepcopy(artifact.model).requires_grad_(False)
        states = range(len(self.encoder.start(1)))
        self.inputs = (*EVENT_INPUTS[:3], *(f"state_{number}" for number in states))
        self.outputs = (VECTOR, *(f"new_state_{number}" for number in states))

    @property
    def encoder(self) -> EventSequence:
        assert self.model.encoders is not None
        found = self.model.encoders.sequence
        assert isinstance(found, EventSequence)
        return found

    def forward(
        self, event_item: Tensor, event_value: Tensor, event_time: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        item_BD = self.model.encode_items(of_items(event_item))
        out_BD, after = self.encoder.step(item_BD, event_value, event_time, state)
        return out_BD - self.encoder.nothing_D, *after


class ScorerGraph(Graph):
    """`Graph` with a further input, `event_vector` (B, D) of a step, instead of the events."""

    def forward(  # type: ignore[override]
        self, user: Tensor, item: Tensor, event_vector: Tensor
    ) -> tuple[Tensor, ...]:
        return self.scores(user, item, None, event_vector)

    def scores(
        self, user: Tensor, item: Tensor, context: Tensor | None, event_vector: Tensor
    ) -> tuple[Tensor, ...]:
        assert self.model.encoders is not None
        vectors = event_vector + self.model.encoders.sequence.nothing_D
        return self.outputs_of(Request(user, item, context, event_vectors=vectors))


class ContextScorerGraph(ScorerGraph):
    """The same of a model with context features."""

    def forward(  # type: ignore[override]
        self, user: Tensor, item: Tensor, context: Tensor, event_vector: Tensor
    ) -> tuple[Tensor, ...]:
        return self.scores(user, item, context, event_vector)


def step_graphs(artifact: Artifact) -> tuple[StepGraph, ScorerGraph]:
    """The step and the scorer of a model that reads events."""
    has_context = artifact.config.model.context != "none"
    scorer = ContextScorerGraph if has_context else ScorerGraph
    return StepGraph(artifact).eval(), scorer(artifact).eval()


def write_step_graphs(
    artifact: Artifact, folder: Path, formats: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and report of each format, as `write_graphs`; latency is that of a step and a score.

    Raises RunError where a timeline followed step by step gives other predictions than the model.
    """
    step, scorer = step_graphs(artifact)
    scorer.model.prepare_export()
    *asked, item_BL, value_BL, time_BL, _ = (one[:3] for one in parity_rows(artifact))
    first = [one[:, 0].clone() for one in (item_BL, value_BL, time_BL)]
    first += [one.clone() for one in step.encoder.start(len(item_BL))]
    second = [*asked, torch.zeros(len(item_BL), artifact.config.model.embedding_dim)]
    programs = {"step": traced(step, (*first,)), "scorer": traced(scorer, (*second,))}
    outputs, reference = {"step": step.outputs, "scorer": scorer.outputs}, graph_of(artifact)
    *rows, _, _, _, _ = once = parity_rows(artifact)
    once = *rows, *(one[:, :1] for one in once[-4:-1]), once[-1]
    for name in dict.fromkeys(formats):
        progress(name)
        form, paths = FORMATS[name], []
        for stem, program in programs.items():
            paths.append(folder / form.file.replace("model", stem))
            with quiet():
                form.write(program, paths[-1], outputs[stem])
        with quiet():
            runner = following(form.load(paths[0]), form.load(paths[1]), step)
        parity = check_parity(name, runner, reference, artifact)
        yield name, {**files_of(paths), "latency_ms": latency(runner, *once), "parity": parity}


def following(step: Runner, scorer: Runner, graph: StepGraph) -> Runner:
    """The outputs of `PastGraph` on its inputs, by one step after the other."""

    def run(*inputs: Tensor) -> list[Tensor]:
        *asked, item_BL, value_BL, time_BL, count_B = inputs
        state = [one.clone() for one in graph.encoder.start(len(item_BL))]
        vector_BD = torch.zeros(len(item_BL), graph.encoder.nothing_D.shape[0])
        for place in range(item_BL.shape[1]):
            event = (one[:, place].contiguous() for one in (item_BL, value_BL, time_BL))
            new_BD, *state = step(*event, *state)
            vector_BD = torch.where(place < count_B[:, None], new_BD, vector_BD)
        return [*scorer(*asked, vector_BD)]

    return run


def described(artifact: Artifact, inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs and outputs of both graphs; `inputs`: those of the graph of windows."""
    step, _ = step_graphs(artifact)
    events = {name: {**inputs[name], "shape": ["rows"]} for name in EVENT_INPUTS[:3]}
    for name, one in zip(step.inputs[3:], step.encoder.start(1), strict=True):
        shape, dtype = ["rows", *one.shape[1:]], str(one.dtype).removeprefix("torch.")
        events[name] = {"dtype": dtype, "shape": shape, "start": 0}
    vector = {"dtype": "float32", "shape": ["rows", artifact.config.model.embedding_dim]}
    asked = {name: one for name, one in inputs.items() if name not in EVENT_INPUTS}
    return {
        "step": {"inputs": events, "outputs": [*step.outputs]},
        "scorer": {"inputs": {**asked, VECTOR: {**vector, "start": 0}}},
    }
