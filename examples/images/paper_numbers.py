"""What the paper reports on images: Tables 1, S1 and S4, means of 50 runs and standard errors."""

from __future__ import annotations

from typing import NamedTuple


class Reported(NamedTuple):
    """Test loss times 100 and accuracies in percent, each with its standard error."""

    loss: tuple[float, float]
    accuracy_1: tuple[float, float]
    accuracy_2: tuple[float, float]


REPORTED = {
    "multi_mnist": {
        "softmax": Reported((7.16, 0.05), (98.16, 0.02), (97.57, 0.02)),
        "topk": Reported((7.15, 0.05), (98.12, 0.02), (97.58, 0.02)),
        "vmoe": Reported((6.98, 0.04), (98.16, 0.02), (97.68, 0.02)),
        "smoe": Reported((6.90, 0.05), (98.18, 0.02), (97.69, 0.02)),
        "expert_choice": Reported((8.57, 0.06), (97.80, 0.02), (97.22, 0.02)),
        "xmoe": Reported((7.02, 0.06), (98.21, 0.02), (97.63, 0.03)),
        "moesart": Reported((5.86, 0.03), (98.40, 0.02), (97.92, 0.02)),
        "dselect_k": Reported((6.93, 0.06), (98.14, 0.02), (97.68, 0.03)),
        "comet": Reported((6.83, 0.06), (98.21, 0.02), (97.63, 0.03)),
        "moesart_i": Reported((6.15, 0.05), (98.33, 0.02), (97.92, 0.02)),
    },
    "multi_fashion": {
        "softmax": Reported((35.01, 0.09), (88.10, 0.05), (87.46, 0.05)),
        "topk": Reported((34.96, 0.09), (88.06, 0.05), (87.45, 0.05)),
        "vmoe": Reported((34.43, 0.09), (88.04, 0.05), (87.53, 0.05)),
        "smoe": Reported((34.68, 0.09), (88.06, 0.04), (87.52, 0.06)),
        "expert_choice": Reported((36.41, 0.11), (87.50, 0.08), (87.03, 0.06)),
        "xmoe": Reported((33.84, 0.10), (88.05, 0.08), (87.84, 0.08)),
        "moesart": Reported((32.85, 0.11), (88.56, 0.06), (88.02, 0.07)),
        "dselect_k": Reported((36.88, 0.21), (87.37, 0.07), (86.61, 0.09)),
        "comet": Reported((34.88, 0.13), (87.97, 0.06), (87.42, 0.06)),
        "moesart_i": Reported((34.15, 0.09), (88.19, 0.05), (87.71, 0.05)),
    },
}
for _rows in REPORTED.values():
    _rows["moesart_3"] = _rows["moesart"]


def reported(dataset: str, label: str, tasks: int) -> Reported | None:
    """None where the paper has no such row; its rows are of two tasks."""
    return REPORTED.get(dataset, {}).get(label) if tasks == 2 else None
