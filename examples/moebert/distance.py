"""Distance of a student from its teacher on held-out texts."""

from __future__ import annotations

from typing import Any

import torch

from examples.images.inference import WAYS
from examples.moebert.convert import convert
from examples.moebert.encoder import Encoder, Seen
from examples.moebert.losses import hidden_distance, symmetric_kl
from examples.moebert.module import EVAL_ROWS
from examples.moebert.rows import Batches, Rows
from examples.moebert.settings import Student

Distances = dict[str, float]


@torch.inference_mode()
def distances(
    students: dict[str, Encoder], teacher: Encoder, rows: Rows
) -> tuple[float, dict[str, Distances]]:
    """Accuracy of the teacher; of each student `accuracy`, `agreement` (share of texts with the
    teacher's answer), symmetric `kl` of the outputs, distance of the `hidden` states."""
    right, of_each = 0.0, {name: dict.fromkeys(NAMES, 0.0) for name in students}
    for model in (teacher, *students.values()):
        model.eval()
    for text, labels_BT in Batches(rows, EVAL_ROWS):
        taught: Seen = teacher(text)
        share = len(labels_BT) / len(rows)
        answers_BT = _answers(taught)
        right += share * _equal(answers_BT, labels_BT)
        for name, student in students.items():
            seen = student(text)
            own_BT = _answers(seen)
            found = (
                _equal(own_BT, labels_BT),
                _equal(own_BT, answers_BT),
                float(symmetric_kl(seen.logits, taught.logits)),
                float(hidden_distance(seen.hidden, taught.hidden, text.mask_BL)),
            )
            for key, value in zip(NAMES, found, strict=True):
                of_each[name][key] += share * value
    return right, of_each


NAMES = ("accuracy", "agreement", "kl", "hidden")


def _answers(seen: Seen) -> torch.Tensor:
    return torch.stack([one.argmax(-1) for one in seen.logits], 1)


def _equal(one_BT: torch.Tensor, other_BT: torch.Tensor) -> float:
    return float((one_BT == other_BT).all(1).float().mean())


def dense(
    student: Encoder, teacher: Encoder, scores: Any, settings: Student, chosen: dict[str, Any]
) -> Encoder | None:
    """The student with all experts at once, weighted as its router would without a selection; None
    for routers without dense inference."""
    if settings.router not in WAYS:
        return None
    change = WAYS[settings.router]["dense"]
    own = {"name": "softmax"} if change.get("name") == "softmax" else {**chosen, **change}
    made = convert(teacher, scores, own, **sizes(settings, teacher))
    made.load_state_dict(student.state_dict())
    return made.to(next(student.parameters()).device)


def sizes(settings: Student, teacher: Encoder) -> dict[str, int]:
    """Experts, units of each and how many all share: 4, 768 and 512 in BERT-base."""
    width = teacher.sizes.intermediate_size
    units = width // settings.experts if settings.units is None else settings.units
    share = min(width // 6, units) if settings.share is None else settings.share
    return {"experts": settings.experts, "units": units, "share": share}
