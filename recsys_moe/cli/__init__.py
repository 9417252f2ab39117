"""The command line: parses, never computes. Heavy imports stay inside the commands.

Results go to stdout, logs and progress to stderr. Exit codes: 0 done, 1 the run failed, 2 usage or
configuration, 3 the data are invalid, 4 a quality threshold was missed, 130/143 interrupted.
"""

from __future__ import annotations

import sys

from recsys_moe.interrupts import end_with, listen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Entry point of the `recsys-moe` script. Signals come first: the rest takes time to load."""
    listen()
    from recsys_moe.cli.commands import run

    caller = sys._getframe(1)
    try:
        run()
    except SystemExit as end:
        if (caller.f_globals.get("__name__"), caller.f_code.co_name) == ("__main__", "<module>"):
            end_with(end.code)  # not in a program that calls us and goes on
        raise


def __getattr__(name: str) -> Any:
    """`app`, the commands, is loaded when somebody asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recsys_moe.cli.commands import app

    return app
