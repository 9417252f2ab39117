"""The search space: around the given settings, the papers' values, and a user's file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recsys_moe.config.diff import flat
from recsys_moe.config.files import merge, nested
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.lab.tune.dimensions import Choices, Dimension, Range, Space, Value

Raw = dict[str, Any]


def untried(space: Space, tried: Iterable[Raw]) -> Raw | None:
    """The first combination that is not in `tried`, of a space without continuous ranges; None
    without one."""
    columns: list[Iterable[Value]] = []
    for dimension in space.values():
        if isinstance(dimension, Choices):
            columns.append(dimension.choices)
        else:
            assert dimension.whole, "fractions do not come twice"
            columns.append(range(int(dimension.low), int(dimension.high) + 1))
    known = {tuple(params[key] for key in space) for params in tried}
    found = (values for values in itertools.product(*columns) if values not in known)
    values = next(found, None)
    return None if values is None else dict(zip(space, values, strict=True))


AROUND = 10
"""The learning rate is searched from the given one divided by this to it times this."""
PAPER_LR = Range(5e-5, 5e-4, log=True)  # MOESART S6.3, MovieLens and Books
# Supplement of COMET (Ibrahim et al. 2023), MovieLens; MOESART states no ranges.
_SMOOTH_STEP = {
    "model.router.gamma": Choices((0.01, 0.1, 1.0, 5.0, 10.0)),
    "model.router.entropy": Choices((0.05, 0.1, 0.5, 1.0, 5.0, 10.0)),
}
SPACES: dict[str, dict[str, Choices]] = {
    "moesart": {"penalties.trimmed_lasso": Choices((0.0, 0.01, 0.1, 1.0, 10.0))},  # S6.3
    "dselect_k": _SMOOTH_STEP,
    "comet": _SMOOTH_STEP,
    "default_moe": {"model.router.momentum": Choices((0.5, 0.9, 0.99, 0.999))},  # ours
    # Around the 0.001 of Wang et al. 2024 and of DeepSeek-V3.
    "loss_free": {"model.router.bias_rate": Choices((1e-4, 1e-3, 1e-2))},
    # Around the 1.2 of Wang et al. 2024 (ReMoE): slower and faster to become sparse.
    "relu": {"model.router.l1_growth": Choices((1.05, 1.1, 1.2, 1.5))},
    # Around the 0.1 of the code of SparseMixer.
    "sparsemixer": {"model.router.epsilon": Choices((0.05, 0.1, 0.2, 0.5))},
}
"""In addition to the learning rate."""

FIXED = {
    "tasks": "losses with different task weights cannot be compared; use --weights, or search "
    "tasks.TASK.training_weight of one of the data's tasks",
    "model.router.name": "use --router",
    "trainer.seed": "use --seed",
    "data.eval_batch_size": "it does not change results",
}
"""Keys that cannot be searched, and the remedy."""


def default_space(base: Raw) -> Space:
    """Around what `base`, the resolved configuration, has: the learning rate, and the values that
    the papers try with this router."""
    router, lr = base["model"]["router"]["name"], base["optim"]["lr"]
    given = dict(flat(base))
    own = {**SPACES.get(router, {}), **_shared(router, base["model"]["num_experts"])}
    choices = {key: values.widened(given[key]) for key, values in own.items()}
    low, high = (float(f"{bound:.6g}") for bound in (lr / AROUND, lr * AROUND))
    return {"optim.lr": Range(low, high, log=True), **choices}


def _shared(router: str, num_experts: int) -> dict[str, Choices]:
    """How many experts the tasks share, where it is a setting. Ours: no paper states values."""
    if router == "shared_bottom":
        numbers = Choices(tuple(2**power for power in range(num_experts.bit_length())))
        return {"model.router.shared": numbers}
    if router == "cgc":
        parts = sorted({num_experts // part for part in (8, 4, 2)})
        return {"model.router.shared": Choices((None, *parts))}
    return {}


def make_space(base: Raw, file: Raw, fixed: Iterable[str]) -> Space:
    """The default space with the dimensions of `file` over it and without those that are fixed.

    `base`: resolved configuration; `file`: key -> {low, high, log} or {choices}, or nothing to
    leave the key out; `fixed`: keys given on the command line. Raises ConfigError.
    """
    space = {key: d for key, d in default_space(base).items() if key not in set(fixed)}
    for key, section in file.items():
        if key in set(fixed):
            raise ConfigError(f"--space {key}: it is also given on the command line; drop one")
        space.pop(str(key), None)
        if section is not None:
            space[str(key)] = _dimension(base, str(key), section)
    if not space:
        raise ConfigError("--space: nothing is left to search; add a key")
    return {key: _checked(base, key, dimension) for key, dimension in space.items()}


def _dimension(base: Raw, key: str, section: Any) -> Dimension:
    """Raises ConfigError unless it is {low, high[, log]} or {choices}."""
    free = {f"tasks.{task}.training_weight" for task in base["tasks"]}
    free |= {f"tasks.weighting.{own}" for own in base["tasks"]["weighting"] if own != "name"}
    for prefix, remedy in FIXED.items():
        if key not in free and (key == prefix or key.startswith(f"{prefix}.")):
            raise ConfigError(f"--space {key}: {remedy}")
    wanted: Any = Choices if isinstance(section, dict) and "choices" in section else Range
    try:
        found: Dimension = TypeAdapter(wanted).validate_python(section)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, [key, *first["loc"][:1]]))
        raise ConfigError(
            f"--space {where}: {first['msg'].removeprefix('Value error, ')}; use "
            f"{{low: 1e-5, high: 1e-3, log: true}} or {{choices: [0, 0.1]}}, got {section!r}"
        ) from None
    return found


def _checked(base: Raw, key: str, dimension: Dimension) -> Dimension:
    """With values as the configuration reads them. Raises ConfigError where it refuses one."""
    if isinstance(dimension, Choices):
        read = tuple(_read(base, key, value) for value in dimension.choices)
        if any(isinstance(value, dict | list) for value in read):
            raise ConfigError(f"--space {key}: a section cannot be searched; name one of its keys")
        return Choices(read)
    whole = not _accepts(base, key, dimension.low + (dimension.high - dimension.low) / math.e)
    for value in (dimension.low, dimension.high):
        _read(base, key, int(value) if whole and value.is_integer() else value)
    return Range(dimension.low, dimension.high, dimension.log, whole)


def _read(base: Raw, key: str, value: Value) -> Any:
    """The value as it stands in the configuration that has it."""
    try:
        value_there: Any = parse_config(merge(base, nested(key, value))).model_dump(mode="json")
    except ConfigError as error:
        raise ConfigError(f"--space {key}: {error}") from None
    for name in key.split("."):
        value_there = value_there[name]
    return value_there


def _accepts(base: Raw, key: str, value: float) -> bool:
    try:
        _read(base, key, value)
    except ConfigError:
        return False
    return True
