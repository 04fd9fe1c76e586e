"""The tables of a report: what was run, how well it did, for whom, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..metrics import fairness, fairness_apart
from ..metrics import mean as mean_over_clients
from .compare import Comparison, Figure, Line, improvement_figures, over_runs, shown
from .runs import Run
from .tables import Cell, Column, Settings, Table

METHOD = Column("method")
FAIRNESS = (Column("variance", 4, "low"), Column("cosine", 4, "high"), Column("entropy", 3), Column("Jain", 4, "high"))
OVER = ("accuracy", "QoI of the improved", "|QoI| of the worsened")  # what fairness is measured over


def console(runs: Sequence[Run]) -> Table:
    """Test accuracy in the last round, over all clients on their own test data; each kind of model in its own line."""
    names = {"mean": "mean", "worst": "worst client", "worst10": "worst 10 %", "std": "std"}
    rows: list[list[Cell]] = []
    for run in runs:
        for kind in ("global", "personal"):
            if not run.has(kind):
                continue
            best = run.best(kind)
            chosen = f"{100 * best[f'{kind}_accuracy_mean']:.1f}, {best['round']:.0f}" if best else "–"
            figures = [run.last.get(f"{kind}_accuracy_{name}") for name in names]
            seconds = run.summary["seconds"] if run.finished else f"unfinished, {run.last['round']:.0f}"
            rows.append([run.name, kind, *figures, chosen, seconds])
    columns = [Column("run"), Column("model"), *(Column(name, 1, scale=100) for name in names.values()),
               Column("best, round", 0), Column("seconds", 1)]  # fmt: skip
    title = "test accuracy in the last round, % (all clients, own test data)"
    return Table("runs", title, columns, rows, "best: the round with the best accuracy on validation data")


def told(comparison: Comparison) -> tuple[set[str], dict[str, Any]]:
    """The settings that tell lines apart: those in which lines that have them differ. And the others that lines do not
    share, by `method: key`: parameters that one method alone has."""
    values: dict[str, set[str]] = {}
    for line in comparison.lines:
        for key, value in line.own.items():
            values.setdefault(key, set()).add(repr(value))
    apart = {key for key, found in values.items() if len(found) > 1}
    alone = {f"{line.method}: {k}": v for line in comparison.lines for k, v in line.own.items() if k not in apart}
    return apart, alone


def what_was_run(comparison: Comparison) -> Table:
    """Each line with the settings that make it differ."""
    rows: list[list[Cell]] = []
    apart, _ = told(comparison)
    for line in comparison.lines:
        settings = {k.removeprefix("algorithm."): shown(line.own[k]) for k in line.own if k in apart}
        ranks = sorted({str(run.summary.get("ranks", "?")) for run in line.runs})
        seconds = line.figure(lambda run: run.summary.get("seconds"))
        seeds = ", ".join(map(str, line.seeds))
        rows.append([line.label, Settings(settings), seeds, line.runs[0].last["round"], ", ".join(ranks), seconds,
                     line.state or "whole"])  # fmt: skip
    columns = [METHOD, Column("settings that differ"), Column("seeds"), Column("rounds", 0), Column("ranks"),
               Column("seconds", 1), Column("state")]  # fmt: skip
    return Table("settings", "What was run", columns, rows)


def results(comparison: Comparison) -> Table:
    """Accuracies and losses of the last round on test data; a line for each kind of model."""
    figures = {
        "mean": "accuracy_mean", "weighted": "accuracy_weighted", "worst client": "accuracy_worst",
        "worst 10 %": "accuracy_worst10", "top 10 % by samples": "accuracy_top10",
        "least 10 % by samples": "accuracy_least10",
    }  # fmt: skip
    columns = [METHOD, Column("model"), Column("runs", 0), *(Column(name, 1, "high", 100) for name in figures),
               Column("std over clients", 1, "low", 100), Column("best on validation", 1, "high", 100),
               Column("its round", 0), Column("loss", 3, "low"), Column("error", 5, "low")]  # fmt: skip
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line in comparison.lines:
        for kind in line.kinds():
            names = [f"{kind}_{name}" for name in (*figures.values(), "accuracy_std")]
            last: list[Cell] = [line.figure(lambda run, name=name: run.last.get(name)) for name in names]  # type: ignore[misc]
            best = [run.best(kind) or {} for run in line.runs]
            chosen: list[Cell] = [
                over_runs(row.get(name) for row in best) for name in (f"{kind}_accuracy_mean", "round")
            ]
            ends: list[Cell] = [
                line.figure(lambda run, name=f"{kind}_{what}_mean": run.last.get(name))  # type: ignore[misc]
                for what in ("loss", "error")
            ]
            rows.append([marked(line), kind, len(line.runs), *last, *chosen, *ends])
            leagues.append(league(line, kind))
    caption = (
        "Test data of every client, last round; accuracies in %, mean ± standard error over runs (seeds). "
        "Bold: the best of the personal and the best of the global models. A method that makes no personal models has "
        "the line of its global one only, which its clients use."
    )
    return without_empty(Table("results", "Results", columns, rows, caption, leagues))


def league(line: Line, kind: str) -> str:
    """Whom a line competes with for the best figure: an unfinished run with nobody."""
    return kind if line.runs[0].finished else f"{kind} {line.label}"


def marked(line: Line) -> str:
    return f"{line.label} ({line.state})" if line.state else line.label


def without_empty(table: Table) -> Table:
    """Without the columns that have nothing in any row."""
    keep = [j for j in range(len(table.columns)) if j == 0 or any(row[j] is not None for row in table.rows)]
    rows = [[row[j] for j in keep] for row in table.rows]
    return Table(table.name, table.title, [table.columns[j] for j in keep], rows, table.caption, table.leagues)


def improvement(comparison: Comparison) -> Table | None:
    """The quantum of improvement of every line; None where its baselines are missing."""
    heads: dict[str, Literal["high", "low"]] = {"PUI": "high", "PUD": "low", "MPI": "high", "API": "high",
                                                "MPD": "high", "APD": "high"}  # fmt: skip
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line in comparison.lines:
        quanta = comparison.improvement(line)
        if quanta:
            figures = improvement_figures(quanta)
            scaled = [scale(figures[name], 1 if name.startswith("PU") else 100) for name in heads]
            parts = [part for run in line.runs if (part := run.accuracies("personal")) is not None]
            average = over_runs(mean_over_clients(part) for part in parts)
            rows.append([marked(line), len(quanta), *scaled, scale(average, 100)])
            leagues.append(league(line, ""))
    if not rows:
        return None
    columns = [METHOD, Column("runs", 0), *(Column(name, 1, best) for name, best in heads.items()),
               Column("average accuracy", 1, "high")]  # fmt: skip
    without = [line.label for line in comparison.lines if not comparison.improvement(line)]
    caption = (
        "QoI = P - max(G, L) of each client: accuracy with the method's model, less the better of FedAvg's global "
        "model and its own local one. PUI, PUD: % of clients above, below zero. MPI, API: median, mean QoI of the "
        "improved; MPD, APD: of the worsened; percentage points. Baselines: the local and fedavg runs with the same "
        "seed whose other settings differ least."
    ) + (f" No baselines for {', '.join(without)}." if without else "")
    return Table("improvement", "Quantum of improvement", columns, rows, caption, leagues)


def scale(figure: Figure | None, factor: float) -> Figure | None:
    return figure and Figure(factor * figure.mean, None if figure.error is None else factor * figure.error)


def fairness_of(comparison: Comparison, line: Line) -> dict[str, dict[str, Figure | None]]:
    """The four figures over accuracies, and over the QoI of the improved and of the worsened."""
    accuracies = [part for run in line.runs if (part := run.accuracies("personal")) is not None]
    quanta = [fairness_apart(qoi) for qoi in comparison.improvement(line)]
    each = {OVER[0]: [fairness(part) for part in accuracies]}
    each |= {what: [one[what.split()[-1]] for one in quanta] for what in OVER[1:]}
    names = fairness(np.array([]))
    return {what: {n: over_runs(one[n] for one in found) for n in names} for what, found in each.items() if found}


def fairness_table(comparison: Comparison) -> Table | None:
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line in comparison.lines:
        for what, figures in fairness_of(comparison, line).items():
            rows.append([marked(line), what, *figures.values()])
            leagues.append(league(line, what))
    order = sorted(range(len(rows)), key=lambda i: OVER.index(str(rows[i][1])))  # stable: lines stay in order
    rows, leagues = [rows[i] for i in order], [leagues[i] for i in order]
    caption = (
        "Over clients, of what they use (personal models). Variance: 0 where all are equal. Cosine with the equal "
        "vector and Jain's index: 1 where all are equal. Entropy of the shares: the logarithm of the number of clients "
        "where all are equal. Of the worsened |QoI| is taken; none: nobody, or only zeros."
    )
    columns = [METHOD, Column("over"), *FAIRNESS]
    return Table("fairness", "Fairness", columns, rows, caption, leagues) if rows else None


def clients(comparison: Comparison) -> Table | None:
    """Every client's samples and accuracy with what it uses, for each line's first run."""
    lines = [line for line in comparison.lines if line.runs[0].accuracies("personal") is not None]
    if not lines:
        return None
    longest = max((line.runs[0] for line in lines), key=lambda run: len(run.series["n_train"]))
    alike = [line for line in lines if line.runs[0].seed == longest.seed]
    count = len(longest.series["n_train"])
    accuracy = [line.runs[0].accuracies("personal") for line in alike]
    rows: list[list[Cell]] = [
        [str(longest.clients[i]), int(longest.series["n_train"][i]), int(longest.series["n_test"][i]),
         *(float(a[i]) if a is not None and i < len(a) else None for a in accuracy)]
        for i in range(count)
    ]  # fmt: skip
    columns = [Column("client"), Column("training samples", 0), Column("test samples", 0),
               *(Column(line.label, 1, None, 100) for line in alike)]  # fmt: skip
    caption = f"Test accuracy in the last round, %, with the model that the client uses; seed {longest.seed}."
    return Table("clients", "Every client", columns, rows, caption)


def costs(comparison: Comparison) -> Table:
    """Seconds, memory and bytes; means over runs."""
    phases = phase_names(comparison)
    rows: list[list[Cell]] = []
    for line in comparison.lines:
        if not line.runs[0].finished:
            continue
        values: list[Cell] = [mean(line, "seconds"), mean(line, "seconds_per_round")]
        values += [mean(line, "phases_seconds", name, "mean") for name in phases]
        values += [mean(line, "peak_memory_mb"), scaled(mean(line, "bytes_per_rank"), 1e-6)]
        rows.append([line.label, ", ".join(sorted({str(run.summary["ranks"]) for run in line.runs})), *values])
    columns = [METHOD, Column("ranks"), Column("seconds", 1), Column("seconds a round", 3),
               *(Column(name, 1) for name in phases), Column("memory, MB", 0),
               Column("sent and received, MB", 1)]  # fmt: skip
    caption = "Phases: seconds, mean over ranks. Memory: of the rank with most. Bytes: all ranks together, measured."
    return Table("costs", "Where the time went", columns, rows, caption)


def phases(comparison: Comparison) -> Table:
    """The ranks' seconds in each phase."""
    names = ("min", "mean", "max")
    rows: list[list[Cell]] = [
        [line.label, phase, *(mean(line, "phases_seconds", phase, name) for name in names)]
        for line in comparison.lines if line.runs[0].finished for phase in phase_names(comparison)
    ]  # fmt: skip
    columns = [METHOD, Column("phase"), *(Column(f"{name} over ranks", 2) for name in names)]
    return Table("phases", "Seconds of each phase", columns, rows)


def phase_names(comparison: Comparison) -> list[str]:
    found = [run.summary.get("phases_seconds") for run in comparison.runs]
    return list(dict.fromkeys(name for one in found if isinstance(one, dict) for name in one))


def mean(line: Line, *keys: str) -> float | None:
    """A figure of summary.json, mean over runs; of a list over ranks the greatest for memory, the sum for bytes."""
    figure = line.figure(lambda run: looked_up(run.summary, keys))
    return None if figure is None else figure.mean


def looked_up(tree: Any, keys: Sequence[str]) -> float | None:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    if isinstance(tree, list) and tree and all(isinstance(v, int | float) for v in tree):
        return float(max(tree) if keys[-1].startswith("peak") else sum(tree))
    return float(tree) if isinstance(tree, int | float) else None


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value
