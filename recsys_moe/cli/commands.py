"""The commands, and how each of them ends."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import typer

import recsys_moe
from recsys_moe import interrupts
from recsys_moe.cli import (
    compare,
    doctor,
    export,
    inference,
    paper,
    prepare,
    recommend,
    report,
    serve,
    settings,
    training,
    tune,
)
from recsys_moe.errors import UserError
from recsys_moe.train.processes import launch, spinning
from recsys_moe.train.processes.starter import rank

app = typer.Typer(
    name="recsys-moe",
    help="Multi-task recommenders with a sparse mixture of experts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: recsys-moe prepare synthetic --out data/demo",
)
app.add_typer(prepare.app, name="prepare")
app.command()(training.fit)
app.command()(inference.evaluate)
app.command()(inference.predict)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(paper.paper)
app.command()(export.export)
app.command()(recommend.recommend)
app.command()(recommend.similar)
app.command()(report.report)
app.command()(serve.serve)
app.command()(settings.routers)
app.command()(doctor.doctor)
app.add_typer(settings.app, name="config")


@app.command()
def version() -> None:
    """Print the version."""
    print(recsys_moe.__version__)


def run() -> None:
    """The command of sys.argv, to its end: raises SystemExit."""
    spinning.spin_briefly()
    level = logging.ERROR if rank() else logging.INFO  # the first process speaks for all
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    try:
        _invoke()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except BaseException as error:
        if number := interrupts.received():
            _fail("interrupted", 128 + number)
        _explain(error)


def _invoke() -> None:
    try:
        app()
    finally:
        sys.stdout.flush()  # now: as Python ends it could not tell a reader that went away


def _explain(error: BaseException) -> NoReturn:
    """End with what an error that no command foresees means. Raises SystemExit."""
    if isinstance(error, SystemExit):
        _leave(error)
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away, as `head` does; nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 1)
    if os.environ.get("RECSYS_MOE_DEBUG") or not isinstance(error, Exception):
        raise error
    hint = "a fault of recsys-moe; RECSYS_MOE_DEBUG=1 shows where"
    _fail(f"{type(error).__name__}: {str(error)[:300]} ({hint})", 1)


def _leave(end: SystemExit) -> NoReturn:
    """Raise `end`, but end one of several training processes at once when its work is done.

    Threads of the collectives may abort a process that tears down while another is leaving.
    """
    if end.code in (None, 0) and interrupts.REPORTS in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    raise end


def _fail(message: str, exit_code: int) -> NoReturn:
    if not launch.report(message, exit_code):
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)
