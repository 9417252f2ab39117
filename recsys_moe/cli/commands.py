"""The commands, and how each of them ends."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer
from pydantic import ValidationError

import recsys_moe
from recsys_moe import interrupts
from recsys_moe.cli import (
    backtest,
    compare,
    doctor,
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
from recsys_moe.cli.options import opt
from recsys_moe.errors import ConfigError, UserError
from recsys_moe.machine import let_idle_threads_sleep
from recsys_moe.train.processes import launch
from recsys_moe.train.processes.starter import rank

SCRIPT = "recsys-moe"
app = typer.Typer(
    name=SCRIPT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Start with: {SCRIPT} prepare synthetic --out data/demo",
)
EXAMPLES: dict[Any, str] = {
    training.fit: "fit --data data/demo --out runs/first",
    training.finish: "finish runs/first",
    inference.evaluate: "evaluate runs/first --split test --ranking",
    inference.predict: "predict runs/first --input pairs.csv --output scores.csv",
    recommend.recommend: "recommend runs/first --user 42 --k 10 --exclude-seen",
    recommend.similar: "similar runs/first --item 7",
    report.report: "report runs/first --out reports/first",
    export.export: "export runs/first --out deploy --format onnx",
    serve.serve: "serve runs/first --port 8000",
    compare.compare: "compare --data data/demo --routers moesart,topk --out comparisons/first",
    tune.tune: "tune --data data/demo --router moesart --trials 50 --out studies/first",
    backtest.backtest: "backtest --data data/timed --start 0.8 --periods 10 --out backtests/first",
    settings.routers: "routers --set model.num_experts=8",
    doctor.doctor: "doctor --data data/demo --run runs/first",
}
app.add_typer(prepare.app, name="prepare")
for command, example in EXAMPLES.items():
    app.command(epilog=f"Example: {SCRIPT} {example}")(command)
app.add_typer(settings.app, name="config")


ORDER = (
    *("prepare", "fit", "finish", "evaluate", "predict", "recommend", "similar", "report"),
    *("export", "serve", "compare", "tune", "backtest"),
    *("paper", "config", "routers", "doctor", "version"),
)
"""The order of use; Typer would list groups last."""


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
        "the paper's studies moved to the repository; run `python -m research.paper` in a checkout"
    )


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _common(
    _: Annotated[
        bool, opt("Print the version.", "--version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Train and serve multi-task recommenders with a sparse mixture of experts."""


class Severity(logging.Formatter):
    """The line alone; from a warning on, with its severity."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        is_more = record.levelno >= logging.WARNING
        return f"{record.levelname.lower()}: {line}" if is_more else line


def _tree() -> Any:
    """The commands as Typer parses them, in our order."""
    root: Any = typer.main.get_command(app)
    root.commands = {name: root.commands[name] for name in ORDER}
    _adjust(root, None)
    return root


def _adjust(command: Any, parent: typer.Context | None) -> None:
    """Refuse empty paths, and hide the <bool> of flags in the help of a command and those below."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        parameter.process_value = partial(_checked, command, parameter, parameter.process_value)
    for below in getattr(command, "commands", {}).values():
        _adjust(below, context)


def _checked(command: Any, parameter: Any, process: Any, context: Any, value: Any) -> Any:
    """`process` of a parameter; of an empty path it would make the current folder."""
    kind = get_type_hints(unwrap(command.callback))[parameter.name] if value == "" else None
    if Path in (kind, *get_args(kind)):
        name = parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.name
        raise ConfigError(f"{name} must name a file or folder, got ''; . is the current folder")
    return process(context, value)


def run() -> None:
    """The command of sys.argv, to its end: raises SystemExit."""
    let_idle_threads_sleep()
    level = logging.ERROR if rank() else logging.INFO  # the first process speaks for all
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Severity("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports fonts
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
        sys.exit(_tree()(prog_name=SCRIPT, standalone_mode=False) or 0)
    except typer.TyperException as error:
        raise ConfigError(_usage(error)) from None
    finally:
        sys.stdout.flush()  # now: as Python ends it could not tell a reader that went away


def _usage(error: Any) -> str:
    """The parser's message, and where to look."""
    message = error.format_message().strip().rstrip(".")
    if not message:  # without arguments: the help has been printed
        sys.exit(error.exit_code)
    if isinstance(error.__cause__, ValidationError):  # whose rule the message is, without the value
        message += f", got {str(error.__cause__.errors()[0]['input'])!r}"
    context = error.ctx and error.ctx.command_path
    return f"{message}; see {context or SCRIPT} --help"


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
