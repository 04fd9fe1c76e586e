"""Compare finished runs in a table: `python -m mpipfl.report RUN [RUN ...]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .errors import UserError

COLUMNS = {"mean": "mean", "worst": "worst client", "worst10": "worst 10 %", "std": "std"}


class ReportError(UserError):
    """A run that cannot be reported."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("mpipfl report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="run folders, such as runs/quickstart_fedavg")
    options = parser.parse_args(argv)
    try:
        summaries = [summary_of(run) for run in options.runs]
    except ReportError as error:
        print(f"mpipfl: {error}", file=sys.stderr)
        return error.code
    Console(width=None if sys.stdout.isatty() else 100).print(table(summaries))
    return 0


def summary_of(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "it has not finished" if (run / "config.yaml").exists() else "it is not a run's folder"
        raise ReportError(f"{run} has no summary.json: {hint}") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    return summary


def table(summaries: list[dict[str, Any]]) -> Table:
    """Test accuracy in the last round, over all clients on their own test data; each kind of model in its own line."""
    result = Table(title="test accuracy in the last round, % (all clients, own test data)")
    for name in ("run", "model", *COLUMNS.values(), "best, round", "seconds"):
        result.add_column(name, justify="left" if name in ("run", "model") else "right", no_wrap=name == "run")
    result.caption = "best: the round with the best accuracy on validation data"
    for summary in summaries:
        last = summary["last"]
        same = last["personal_accuracy_mean"] == last["global_accuracy_mean"]
        for kind in ("global",) if same else ("global", "personal"):
            if last[f"{kind}_accuracy_mean"] is None:
                continue
            best = summary[f"best_{kind}"]
            chosen = f"{100 * best[f'{kind}_accuracy_mean']:.1f}, {best['round']}" if best else "–"
            figures = [f"{100 * last[f'{kind}_accuracy_{column}']:.1f}" for column in COLUMNS]
            result.add_row(summary["name"], kind, *figures, chosen, f"{summary['seconds']:.1f}")
    return result


if __name__ == "__main__":
    sys.exit(main())
