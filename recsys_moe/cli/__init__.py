"""The command line: parses, never computes. Heavy imports stay inside the commands.

Results go to stdout, logs and progress to stderr. Exit codes: 0 done, 1 the run failed, 2 usage or
configuration, 3 the data are invalid, 4 a quality gate was missed, 130/143 interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

import typer

import recsys_moe
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


def main() -> None:
    """Entry point of the `recsys-moe` script."""
    spinning.spin_briefly()
    # So that what is half-written goes away on SIGTERM as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    level = logging.ERROR if rank() else logging.INFO  # the first process speaks for all
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    try:
        _run()
    except SystemExit as end:
        _leave(end)
        raise
    except UserError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("RECSYS_MOE_DEBUG"):
            raise
        hint = "a fault of recsys-moe; RECSYS_MOE_DEBUG=1 shows where"
        _fail(f"{type(error).__name__}: {str(error)[:300]} ({hint})", 1)


def _run() -> None:
    try:
        app()
    finally:
        sys.stdout.flush()  # now: as Python ends it could not tell a reader that went away


def _leave(end: SystemExit) -> None:
    """End one of several training processes at once when its work is done.

    Threads of the collectives may abort a process that tears down while another is leaving.
    """
    if end.code in (None, 0) and launch.REPORTS in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _fail(message: str, exit_code: int) -> None:
    if not launch.report(message, exit_code):
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)
