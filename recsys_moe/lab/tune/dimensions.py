"""Dimensions of a search space: a range of numbers, or choices."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)
from pydantic.dataclasses import dataclass

Value = float | int | str | bool | None
PLAIN = ConfigDict(extra="forbid")


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Bound = Annotated[FiniteFloat, BeforeValidator(_no_switch)]
"""Also as text: YAML takes 1e-5 for one."""
Plain = StrictBool | StrictInt | StrictFloat | StrictStr | None


@dataclass(frozen=True, config=PLAIN)
class Range:
    """A range of numbers, bounds included."""

    low: Bound
    high: Bound
    log: StrictBool = False
    """Uniform in the logarithm."""
    whole: StrictBool = False

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("low must be less than high")
        if self.log and self.low <= 0:
            raise ValueError("log: true needs low > 0")

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"its range, {self.low:g} to {self.high:g}"

    def edge(self, value: float) -> str | None:
        """`lower` or `upper` where the value is within EDGE of a bound that is not 0."""
        scale = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        place = (scale(value) - low) / (high - low)
        if place <= EDGE and self.low:
            return "lower"
        return "upper" if place >= 1 - EDGE and self.high else None

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, config=PLAIN)
class Choices:
    """A choice with equal probabilities."""

    choices: tuple[Plain, ...]

    def __post_init__(self) -> None:
        if len(set(map(repr, self.choices))) < max(len(self.choices), 1):
            raise ValueError("choices must list different plain values")

    def __contains__(self, value: object) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self.choices)

    def __str__(self) -> str:
        return f"its values, {', '.join(map(str, self.choices))}"

    def edge(self, value: Value) -> str | None:
        """`lower` or `upper` where it is the outermost of three numbers or more, and not 0."""
        numbers = [c for c in self.choices if isinstance(c, int | float) and type(c) is not bool]
        if len(numbers) < max(3, len(self.choices)) or not value:
            return None
        return "lower" if value == min(numbers) else "upper" if value == max(numbers) else None

    def widened(self, value: Value) -> Choices:
        """With one more number, in order."""
        if value in self:
            return self
        return Choices(tuple(sorted((*self.choices, value), key=lambda number: float(number or 0))))

    def to_json(self) -> dict[str, Any]:
        return {"choices": list(self.choices)}


Dimension = Range | Choices
Space = dict[str, Dimension]
"""By dotted key of the configuration."""
EDGE = 0.05
"""Share of a range at either end that counts as its edge."""
