"""Plain numbers on logarithmic axes."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import LogFormatter


class _PlainLog(LogFormatter):
    """Labels the ticks that matplotlib would label, but as 0.01 and 100.

    Its own labels are TeX, which stands there as it is written where `text.parse_math` is off.
    """

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def plain_log(axis: Any) -> None:
    """Plain numbers at the ticks of a logarithmic axis. Call it after setting the scale."""
    axis.set_major_formatter(_PlainLog())
    axis.set_minor_formatter(_PlainLog())
