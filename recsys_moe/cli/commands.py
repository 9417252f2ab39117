"""The commands, and how each of them ends."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

import recsys_moe
from recsys_moe import interrupts
from recsys_moe.cli import (
    compare,
    doctor,
    empty_paths,
    export,
    faults,
    inference,
    prepare,
    recommend,
    report,
    serve,
    settings,
    training,
    tune,
)
from recsys_moe.errors import ConfigError, UserError
from recsys_moe.machine import let_idle_threads_sleep
from recsys_moe.train.processes import launch
from recsys_moe.train.processes.starter import rank

app = typer.Typer(
    name="recsys-moe",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: recsys-moe prepare synthetic --out data/demo",
)
app.add_typer(prepare.app, name="prepare")
for command in (
    *(training.fit, training.finish, inference.evaluate, inference.predict, compare.compare),
    *(tune.tune, export.export, recommend.recommend, recommend.similar),
    *(report.report, serve.serve, settings.routers, doctor.doctor),
):
    app.command()(command)
app.add_typer(settings.app, name="config")


ORDER = (
    *("prepare", "fit", "finish", "evaluate", "predict", "recommend", "similar", "report"),
    *("export", "serve", "compare", "tune", "paper", "config", "routers", "doctor", "version"),
)
"""In which one uses them; Typer would list groups last."""


@app.command()
def version() -> None:
    """Print the version."""
    print(recsys_moe.__version__)


@app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def paper() -> None:
    """Moved out of the package."""
    raise ConfigError(
        "the paper's studies need a checkout: there `python -m research.paper` runs them"
    )


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _common(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print it."),
    ] = False,
) -> None:
    """Multi-task recommenders with a sparse mixture of experts."""


class Severity(logging.Formatter):
    """The line alone; with its severity before it from a warning on."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        is_more = record.levelno >= logging.WARNING
        return f"{record.levelname.lower()}: {line}" if is_more else line


def _tree() -> Any:
    """The commands as Typer parses them, in our order, with flags shown as such in the help."""
    root: Any = typer.main.get_command(app)
    root.commands = {name: root.commands[name] for name in ORDER}
    _show_flags(root, None)
    empty_paths.refuse(root)
    return root


def _show_flags(command: Any, parent: typer.Context | None) -> None:
    """Without the <bool> of a value, which they do not take."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _show_flags(below, context)


def run() -> None:
    """The command of sys.argv, to its end: raises SystemExit."""
    let_idle_threads_sleep()
    level = logging.ERROR if rank() else logging.INFO  # the first process speaks for all
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Severity("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of its fonts nobody asked
    try:
        invoke()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except BaseException as error:
        if number := interrupts.received():
            _fail("interrupted", 128 + number)
        _explain(error)


def invoke() -> None:
    """What sys.argv asks for; raises its errors, and SystemExit at its end."""
    try:
        sys.exit(_tree()(prog_name=app.info.name, standalone_mode=False) or 0)
    except typer.TyperException as error:
        raise ConfigError(_usage(error)) from None
    finally:
        sys.stdout.flush()  # now: as Python ends it could not tell a reader that went away


def _usage(error: Any) -> str:
    """What the parser has to say of the command line, and where to look."""
    message = error.format_message().strip().rstrip(".")
    if not message:  # without arguments: the help has been printed
        sys.exit(error.exit_code)
    if isinstance(error.__cause__, ValidationError):  # whose rule the message is, without the value
        message += f", got {str(error.__cause__.errors()[0]['input'])!r}"
    context = error.ctx and error.ctx.command_path
    return f"{message}; {context or app.info.name} --help says what it takes"


def _explain(error: BaseException) -> NoReturn:
    """End with what an error that no command foresees means. Raises SystemExit."""
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        # The reader of our output went away, as `head` does: it has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if isinstance(error, SystemExit):
        _leave(error)
    if os.environ.get(faults.DEBUG) or not isinstance(error, Exception):
        raise error
    _fail(faults.explained(error), faults.exit_code(error))


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
