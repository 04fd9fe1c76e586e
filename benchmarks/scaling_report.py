"""Results of `benchmarks.scaling` as one picture: time and efficiency against workers, and where the time goes."""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from .common import Row
from .picture import save, texts

PARTS = ("training", "waiting for the slowest", "broadcast", "reduce", "other")


def draw(paths: list[Path], into: Path) -> int:
    """The file, HTML or PNG by its name; the exit code."""
    results = []
    for path in paths:
        try:
            results.append(json.loads(path.read_text(encoding="utf-8")))
            series(results[-1])
        except (OSError, ValueError, KeyError, StopIteration):
            print(f"benchmarks.scaling: {path} is not a result of this benchmark", file=sys.stderr)
            return 2
    if into.suffix not in (".html", ".png"):
        print(f"benchmarks.scaling: -o {into}: the report is an .html or a .png file", file=sys.stderr)
        return 2
    save(draft(results), into, "Scaling", "time and efficiency against workers", body(results))
    return 0


def series(result: dict[str, Any]) -> list[Row]:
    return next(rows for title, rows in result["tables"].items() if " scaling of " in title)


def name(result: dict[str, Any]) -> str:
    sizes = "" if result["sizes"] == "equal" else f", {result['sizes'].replace('_', ' ')}"
    return f"{result['workload']}, {result['scaling']}{sizes} ({result['date'][:10]})"


def draft(results: list[dict[str, Any]]) -> Figure:
    """Two curves over all results, and a bar chart for each of them."""
    matplotlib.rcParams["svg.hashsalt"] = "mpipfl"
    figure = Figure(figsize=(11, 3.6 * (1 + -(-len(results) // 2))), layout="constrained")
    axes = figure.subplots(1 + -(-len(results) // 2), 2, squeeze=False)
    time, efficiency = axes[0]
    for result in results:
        rows = series(result)
        workers = [row["workers"] for row in rows]
        (line,) = time.loglog(workers, [row["a round (s)"] for row in rows], marker="o", label=name(result))
        first = rows[0]["a round (s)"]
        ideal = [first * (workers[0] / w if result["scaling"] == "strong" else 1) for w in workers]
        time.loglog(workers, ideal, color=line.get_color(), ls=":")
        efficiency.semilogx(workers, [row["efficiency"] for row in rows], marker="o", color=line.get_color())
        alone = [row["efficiency of training alone"] for row in rows]
        efficiency.semilogx(workers, alone, color=line.get_color(), ls="--")
    efficiency.axhline(1, color="grey", ls=":")
    efficiency.set(xlabel="workers", title="efficiency (training alone: dashed)", ylim=(0, None))
    time.set(xlabel="workers", title="seconds of a round (ideal: dotted)")
    counts = sorted({row["workers"] for result in results for row in series(result)})
    for axis in (time, efficiency):
        axis.minorticks_off()
        axis.set_xticks(counts, [str(count) for count in counts])
    time.legend(fontsize="small", loc="center left", bbox_to_anchor=(0, 0.4))
    for axis, result in zip(axes[1:].flat, results, strict=False):
        bars(axis, result)
    for axis in axes[1:].flat[len(results) :]:
        axis.remove()
    return figure


def bars(axis: Any, result: dict[str, Any]) -> None:
    """Where a worker's time goes."""
    rows, bottom = series(result), [0.0] * len(series(result))
    places = range(len(rows))
    for part in PARTS:
        heights = [parts(row)[part] for row in rows]
        axis.bar(places, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set(title=name(result), xlabel="workers", ylabel="seconds of a round, a worker", ylim=(0, 1.35 * max(bottom)))
    axis.set_xticks(places, [str(row["workers"]) for row in rows])
    axis.legend(fontsize="x-small", ncols=3, loc="upper center")


def parts(row: Row) -> dict[str, float]:
    """A worker's seconds; those in the reduction begin with waiting for the slowest one."""
    waiting = row["training: slowest (s)"] - row["training: mean (s)"]
    values = (row["training: mean (s)"], waiting, row["broadcast (s)"], max(0.0, row["reduce (s)"] - waiting),
              row["other (s)"])  # fmt: skip
    return dict(zip(PARTS, values, strict=True))


def body(results: list[dict[str, Any]]) -> str:
    """Each result's machine and tables."""
    parts = []
    for result in results:
        machine = f"{result['machine']['processor']}, {result['machine']['cores']} cores"
        parts.append(f"<h2>{escape(name(result))}: {escape(machine)}</h2>{texts(result['tables'])}")
    return "".join(parts)
