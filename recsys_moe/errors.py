"""Errors for users, each kind with its exit code. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A message for the user: rule, value, remedy, in one line."""

    exit_code: int = 1


class ConfigError(UserError, ValueError):
    """A setting or a path on the command line that cannot be used."""

    exit_code = 2


class DataError(UserError, ValueError):
    """Input data, prepared data or a model folder that cannot be used."""

    exit_code = 3


class RunError(UserError, RuntimeError):
    """The run failed, e.g. because the loss is no longer finite."""

    exit_code = 1


class GateError(UserError):
    """An evaluation misses a quality threshold."""

    exit_code = 4


class Interrupted(UserError):
    """A signal ended the run; finished epochs are saved. The exit code is 128 + the signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
