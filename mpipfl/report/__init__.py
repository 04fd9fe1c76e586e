"""Compare runs: `python -m mpipfl.report RUN [RUN ...]`.

On the terminal a table of the last round's accuracies; with -o one HTML file with everything: tables, pictures, costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import UserError
from ..files import whole
from . import classes, contents, detection
from .clock import System, system
from .compare import Comparison, compare, refuse
from .runs import ReportError, read
from .tables import Table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("mpipfl report", description="Compare runs: a table, or everything in one file.")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="run folders, such as runs/quickstart_fedavg")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write tables and pictures to one HTML file")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="write every table as Markdown, CSV and LaTeX")
    parser.add_argument(
        "--time", metavar="rho=4,tmin=1,mu=1", action="append", default=[],
        help="with -o: accuracy against normalised time too; once for each system",
    )  # fmt: skip
    options = parser.parse_args(argv)
    try:
        systems = [system(text) for text in options.time]
        if systems and options.output is None:
            raise ReportError("--time draws a picture: it needs -o report.html")
        runs = [read(path) for path in options.runs]
        if options.output is not None or options.tables is not None:
            files(compare(runs), options.output, options.tables, systems)
        if options.output is None:
            Console(width=None if sys.stdout.isatty() else 100).print(contents.console(runs).rich())
            refuse(runs)
    except UserError as error:
        print(f"mpipfl: {error}", file=sys.stderr)
        return error.code
    return 0


def files(comparison: Comparison, output: Path | None, folder: Path | None, systems: Sequence[System]) -> None:
    """What was asked for, and what is worth knowing about the runs."""
    for note in comparison.notes:
        print(f"mpipfl: {note}", file=sys.stderr)
    if output is not None:
        from .page import page  # matplotlib takes a second

        write(output, page(comparison, systems))
        print(f"{output}: {len(comparison.runs)} runs, {output.stat().st_size / 1e6:.1f} MB")
    if folder is not None:
        for table in tables(comparison):
            for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
                write(folder / f"{table.name}.{ending}", text)
        print(f"{folder}: every table as .md, .csv and .tex")


def tables(comparison: Comparison) -> list[Table]:
    """Every table of the report that has rows."""
    made = [contents.results(comparison), classes.macro_table(comparison), classes.false_accepts_table(comparison),
            detection.table(comparison), contents.improvement(comparison), contents.fairness_table(comparison),
            contents.clients(comparison), contents.what_was_run(comparison), contents.costs(comparison),
            contents.phases(comparison)]  # fmt: skip
    return [table for table in made if table is not None and table.rows]


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror or error}") from None
