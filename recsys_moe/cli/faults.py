"""Unforeseen errors, explained in one line."""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback
from pathlib import PurePath

from recsys_moe.errors import ConfigError

OURS = ("recsys_moe", "data_prep")
DEBUG = "RECSYS_MOE_DEBUG"
LIBRARIES = {"site-packages", "dist-packages"}
"""Folders of installed packages: this environment's, the user's, the system's."""


def exit_code(error: Exception) -> int:
    """2 where a path is too long for the system; else 1."""
    asked = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
    return ConfigError.exit_code if asked else 1


def explained(error: Exception) -> str:
    """Where the error comes from: the file system, memory, a module from outside, or ours."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{str(error.filename)[:40]}...: path too long; choose a shorter one"
    if isinstance(error, OSError):
        return f"{error.filename or 'file system'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory; use smaller inputs or a machine with more memory"
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if place := _outside(error):
        return f"{place}: {said} (in a module outside recsys-moe; {DEBUG}=1 shows the traceback)"
    return f"{said} (a bug in recsys-moe; {DEBUG}=1 shows the traceback)"


def _outside(error: Exception) -> str:
    """FILE:LINE of the deepest call into neither our code nor an installed library, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    paths = sysconfig.get_paths()
    installed = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        compiled = not os.path.isabs(file)  # as pyarrow's, which names its sources
        known = file.startswith((*installed, "<")) or LIBRARIES & {*PurePath(file).parts}
        if package not in OURS and not compiled and not known:
            return f"{file}:{line}"
    return ""
