"""The tables of research/results from their CSV files, which `recsys-moe compare` has written.

    python -m research.results_table                  # every page, by the command that it shows
    python -m research.results_table --check          # 1 where a page is not what its files give
    python -m research.results_table research/results/NAME.runs.csv [MORE.csv ...] \\
        --epochs research/results/NAME.epochs.csv --reach 0.9,0.1=0.4089 \\
        --plot research/images/NAME.svg --write research/results/NAME.md

Fills the part of a page between `<!-- table -->` and `<!-- /table -->`: per pair of task weights a
table, the lowest loss first, and its tests; below them what the numbers are and the command itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from recsys_moe.errors import ConfigError
from recsys_moe.files import write_text
from recsys_moe.lab.compare.tables import BOLD_NOTE
from research.results_cells import table, verdicts
from research.results_rows import Group, read_groups

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "research" / "results"
SCRIPT = "python -m research.results_table"
BEGIN, END = "<!-- table -->", "<!-- /table -->"
WIDTH = 120
CELLS = (
    "Cells: mean +- standard error (n - 1) over seeds on the {split} split. Above the best: "
    "difference of the mean losses and, in brackets, how many standard errors of that difference "
    "it is. Experts: distinct ones evaluated per example over all tasks. s/epoch: median over runs "
    "of each run's median, validation included."
)
REACHED = (
    "Epochs to a loss: the first whose validation loss is at most that, mean over the seeds that "
    "reach it, as far as their epochs are known; minutes: those epochs times s/epoch."
)
TESTED = f"{BOLD_NOTE} The p of the lists are of that test, after Holm's correction for the list."
PAPER = "Paper: 50 runs of a tuned configuration on another draw of the split."


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else list(argv)
    options = parse(words)
    try:
        stale = [
            page.write or page.plot
            for page in asked_pages(options)
            if not on_step_end(page, options.check)
        ]
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for page in stale:
        print(f"error: {page} is not what its CSV files give; run `{SCRIPT}`", file=sys.stderr)
    sys.exit(1 if stale else 0)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="runs.csv of one or several sessions")
    parser.add_argument("--epochs", nargs="+", type=Path, default=[], help="their epochs.csv")
    parser.add_argument(
        "--reach", action="append", default=[], metavar="[W,...=]LOSS", help="validation loss"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="validation loss by epoch, minute")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to fill")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where it would")
    options = parser.parse_args(words)
    if options.runs and not (options.write or options.plot):
        parser.error("--write PAGE is missing, or --plot PNG")
    if not options.runs and (options.write or options.epochs or options.plot or options.reach):
        parser.error("name the CSV files, or nothing for every page")
    return options


def asked_pages(options: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """What to make: as asked, else as each page of research/results with markers shows."""
    if options.runs:
        yield options
        return
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if BEGIN in text:
            yield parse(command_in(text, page))


def command_in(text: str, page: Path) -> list[str]:
    """The words after the script of the command that a filled page shows."""
    found = re.search(rf"^    {re.escape(SCRIPT)} ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    if found is None:
        raise ConfigError(f"{page} does not show how it is made; fill it once with --write {page}")
    return shlex.split(found[1].replace("\\\n", " "))


def on_step_end(options: argparse.Namespace, check: bool) -> bool:
    """Draw and fill, or say whether that is done already. Paths start at the checkout."""
    runs, epochs = ([ROOT / path for path in paths] for paths in (options.runs, options.epochs))
    groups, targets = read_groups(runs, epochs), targets_of(options.reach)
    is_drawn = True
    if options.plot and check:
        is_drawn = (ROOT / options.plot).is_file()
    elif options.plot:
        from research.results_plot import draw

        draw(groups, [target_of(group, targets) for group in groups], ROOT / options.plot)
    if options.write is None:
        return is_drawn
    page = ROOT / options.write
    before = page.read_text(encoding="utf-8") if page.is_file() else ""
    after = filled(before, block(groups, targets, options), page)
    if before != after and not check:
        write_text(page, after)
    return is_drawn and (before == after or not check)


def filled(text: str, block: str, page: Path) -> str:
    """`text` with `block` between its markers, of which it must have one pair."""
    head, found, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not (found and ended) or BEGIN in rest or END in tail:
        raise ConfigError(f"{page} must have one line {BEGIN} and, below it, one {END}")
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


def targets_of(words: Sequence[str]) -> dict[str, float]:
    """`0.9,0.1=0.4089` -> by task weights; one without weights is for all others."""
    targets = {}
    for word in words:
        weights, _, loss = word.rpartition("=")
        try:
            key = ",".join(f"{float(weight):g}" for weight in weights.split(",") if weight)
            targets[key] = float(loss)
        except ValueError:
            raise ConfigError(f"--reach must be LOSS or W,W=LOSS, got {word!r}") from None
    return targets


def target_of(group: Group, targets: dict[str, float]) -> float | None:
    key = ",".join(f"{weight:g}" for weight in group.weights.values())
    return targets.get(key, targets.get(""))


def block(groups: Sequence[Group], targets: dict[str, float], options: argparse.Namespace) -> str:
    """What stands between the markers."""
    parts = []
    for group in groups:
        reach = target_of(group, targets)
        parts.append(f"Task weights {group.title}, lowest loss first:")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in table(group, reach)))
        if lines := verdicts(group):
            parts.append("\n".join(wrapped(f"- {line}") for line in lines))
    if options.plot:
        folder = options.write.parent
        picture = Path(os.path.relpath(ROOT / options.plot, ROOT / folder)).as_posix()
        parts.append(f"![Validation loss against epochs and minutes]({picture})")
    return "\n\n".join([*parts, wrapped(notes(groups, targets)), "Made by", command_of(options)])


def notes(groups: Sequence[Group], targets: dict[str, float]) -> str:
    """What the numbers are."""
    split = groups[0].routers[0].runs[0].get("split") or "test"
    sentences = [CELLS.format(split=split), REACHED if targets else "", TESTED]
    sentences.append(PAPER if any(group.paper for group in groups) else "")
    return " ".join(filter(None, sentences))


def command_of(options: argparse.Namespace) -> str:
    """As code, with the paths as from the checkout."""
    words = [*map(in_checkout, options.runs)]
    words += ["--epochs", *map(in_checkout, options.epochs)] if options.epochs else []
    words += [word for loss in options.reach for word in ("--reach", loss)]
    words += ["--plot", in_checkout(options.plot)] if options.plot else []
    words += ["--write", in_checkout(options.write)]
    lines = textwrap.wrap(
        shlex.join([*SCRIPT.split(), *words]), WIDTH - 10,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "    " + " \\\n        ".join(lines)


def in_checkout(path: Path) -> str:
    place = (ROOT / path).resolve()
    return (place.relative_to(ROOT) if place.is_relative_to(ROOT) else place).as_posix()


def wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    main()
