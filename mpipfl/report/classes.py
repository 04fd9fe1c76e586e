"""Tables of what single samples were taken for: macro precision, recall and F1; false accepts of detection tasks."""

from __future__ import annotations

import numpy as np

from ..metrics import false_accepts_at
from .compare import Comparison, Figure, over_runs
from .contents import METHOD, league, marked
from .runs import READABLE, Run
from .tables import Cell, Column, Table

BASELINE = "fedavg"


def macro_table(comparison: Comparison) -> Table | None:
    """Each client's macro averages, mean over clients; None where no run has them."""
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line in comparison.lines:
        for kind in line.kinds():
            names = [f"{kind}_{name}_mean" for name in ("precision", "recall", "f1")]
            figures: list[Cell] = [over_runs(run.last.get(name) for run in line.runs) for name in names]
            if figures[-1] is not None:
                least = over_runs(worst(run, kind) for run in line.runs)
                rows.append([marked(line), kind, len(line.runs), *figures, least])
                leagues.append(league(line, kind))
    if not rows:
        return None
    heads = ("precision", "recall", "F1", "F1, worst 10 %")
    columns = [METHOD, Column("model"), Column("runs", 0), *(Column(head, 1, "high", 100) for head in heads)]
    caption = (
        "Test data, last round, %. Each client's averages over the classes that occur in its data or among its "
        "predictions, all with equal weight; then the mean over clients, and that of the tenth with the least F1."
    )
    return Table("classes", "Precision, recall and F1", columns, rows, caption, leagues)


def worst(run: Run, kind: str) -> float | None:
    """The mean of the ceil(M / 10) least F1."""
    f1 = run.series.get(f"{kind}/f1")
    there = np.zeros(0) if f1 is None or not len(f1) else np.sort(f1[-1][~np.isnan(f1[-1])])
    return float(there[: -(-len(there) // 10)].mean()) if len(there) else None


def false_accepts_table(comparison: Comparison) -> Table | None:
    """False accepts where as many positives are rejected as by the baseline; None without a two-class baseline."""
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line in comparison.lines:
        for kind in line.kinds():
            found = [one for run in line.runs if (one := false_accepts(comparison, run, kind)) is not None]
            if found:
                figures: list[Figure | None] = [over_runs(column) for column in zip(*found, strict=True)]
                rows.append([marked(line), kind, len(found), *figures])
                leagues.append(league(line, ""))
    if not rows:
        return None
    columns = [METHOD, Column("model"), Column("runs", 0), Column("false accepts, %", 2, "low", 100),
               Column("of the baseline, %", 2, None, 100), Column("relative", 3, "low")]  # fmt: skip
    caption = (
        f"Two classes, of which the second is to be accepted; test samples of all clients together, last round. The "
        f"baseline is the global model of the {BASELINE} run with the same seed whose other settings differ least, at "
        f"a probability of 1/2. Both stand at the threshold where they reject as many positives as it does there, or "
        f"nearly, and accept least. Relative: a model's false accepts in the baseline's; none: the baseline has none."
    )
    return Table("false_accepts", "False accepts", columns, rows, caption, leagues)


def false_accepts(comparison: Comparison, run: Run, kind: str) -> tuple[float | None, ...] | None:
    """The rate, the baseline's rate, and their relation; None where there is no other run to compare with."""
    baseline = comparison.baseline(BASELINE, run)
    if baseline is None or (baseline is run and kind == "global"):
        return None
    try:
        label = run.series["scores/label"]
        there = label >= 0
        own, before = run.series[f"scores/{kind}"][there], baseline.series["scores/global"][there]
        found = false_accepts_at(own, label[there], before)
    except READABLE:  # not two classes, too many samples to be kept, or a file that others wrote
        return None
    return found.rate, found.baseline_rate, found.relative
