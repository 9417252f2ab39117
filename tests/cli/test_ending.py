"""How a process ends: all that is to be done at its end is done, and nothing is taken apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recsys_moe import interrupts
from recsys_moe.cli import main

PROGRAM = """
import atexit, builtins, os, sys, types
import recsys_moe.cli

class Last:
    def __del__(self):
        os.write(2, b"taken apart")

def run():
    atexit.register(lambda: sys.stderr.write("at exit, "))
    print("said")
    sys.exit(int(sys.argv[1]))

builtins.last = Last()  # Python lets go of it after atexit
sys.modules["recsys_moe.cli.commands"] = types.SimpleNamespace(run=run)  # quick to load
"""


def ended(program: str, code: int) -> tuple[int, str, str]:
    words = [sys.executable, "-c", PROGRAM + program, str(code)]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_ends_with_its_code_before_python_is_taken_apart(code: int) -> None:
    """Threads of libraries abort the process there: 134 in place of the exit code."""
    assert ended("recsys_moe.cli.main()", code) == (code, "said\n", "at exit, ")


def test_what_was_to_be_done_at_the_end_before_the_command_began_is_done() -> None:
    program = "atexit.register(print, 'early')\nrecsys_moe.cli.main()"
    assert ended(program, 3) == (3, "said\nearly\n", "at exit, taken apart")


def test_a_program_that_goes_on_ends_as_it_wants() -> None:
    program = """
def called():
    try:
        recsys_moe.cli.main()
    except SystemExit as end:
        print("ended with", end.code)

called()
sys.exit(7)
"""
    assert ended(program, 3) == (7, "said\nended with 3\n", "at exit, taken apart")


def test_inside_a_test_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recsys-moe", "version"])
    with pytest.raises(SystemExit):
        main()
    assert interrupts._code is None
