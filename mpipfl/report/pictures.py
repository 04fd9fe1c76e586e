"""Pictures as inline SVG, by matplotlib: no colour of their own for text and axes, so that light and dark both work.

A line of the comparison has the same colour in every picture; the legend is the page's.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator, StrMethodFormatter

from .clock import System
from .compare import Comparison, Line
from .contents import fairness_of, mean, phase_names

INK = "#123456"  # stands for the page's text colour
COLOURS = ("#3b82f6", "#ef4444", "#10b981", "#f59e0b", "#8b5cf6",
           "#06b6d4", "#ec4899", "#84cc16", "#b45309", "#64748b")  # fmt: skip
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
KIND = {"personal": "what clients use (personal)", "global": "global model"}
INKED = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "axes.titlecolor",
    "xtick.color",
    "ytick.color",
    "grid.color",
)
STYLE: Any = dict.fromkeys(INKED, INK) | {
    "svg.fonttype": "none", "font.size": 9, "font.sans-serif": ["DejaVu Sans"], "text.parse_math": False,
    "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.linewidth": 0.7, "axes.titlesize": 9.5, "axes.titley": 1.0, "axes.formatter.useoffset": False,
    "grid.alpha": 0.18, "grid.linewidth": 0.7, "lines.linewidth": 1.4, "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
WIDE = 9.0  # inches
POINTS = 200  # of a curve; more are thinned out


@contextmanager
def panels(count: int, columns: int = 2, height: float = 2.3) -> Iterator[tuple[Canvas, list[Any]]]:
    """A drawing of so many equal panels."""
    columns = min(columns, count)
    rows = -(-count // columns)
    width, high = WIDE if columns > 1 else 5.5, rows * height
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(width, high))
        grid = canvas.subplots(rows, columns, squeeze=False).ravel()
        left = 0.55 if columns > 1 else 0.75
        canvas.subplots_adjust(left=left / width, right=1 - 0.2 / width, bottom=0.5 / high, top=1 - 0.3 / high,
                               wspace=0.7 * columns / width, hspace=0.75 / (height - 0.6))  # fmt: skip
        for empty in grid[count:]:
            empty.remove()
        yield canvas, list(grid[:count])


def svg(canvas: Canvas, name: str) -> str:
    """The drawing, as small as it goes and with nothing that refers out of the page."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        canvas.savefig(out, format="svg", transparent=True, metadata=nothing, dpi=110)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'\s+(xmlns(:xlink)?|version)="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("xlink:href", "href").replace(INK, "currentColor")
    text = re.sub(r'font: ([\d.]+)px [^;"]*', r"font: \1px sans-serif", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)  # coordinates, not texts
    kind = "picture small" if canvas.get_figwidth() < WIDE else "picture"
    text = re.sub(r'<svg width="[\d.]+pt" height="[\d.]+pt"', f'<svg class="{kind}" role="img"', text)
    return re.sub(r"\n\s*", "\n", text).strip()


def style(index: int) -> dict[str, Any]:
    """How the line with this number is drawn."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def fill(index: int) -> tuple[str, float]:
    """A bar's colour and opacity: paler where a line would be dashed."""
    return COLOURS[index % len(COLOURS)], (1.0, 0.6, 0.4, 0.25)[index // len(COLOURS) % len(DASHES)]


def logarithmic(axes: Any, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with plain numbers: typeset powers of ten take longer than all the rest of a picture."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.get_major_locator().set_params(subs=(1, 2, 5))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def thinned(*arrays: np.ndarray) -> list[np.ndarray]:
    """At most so many points, the first and the last among them."""
    count = len(arrays[0])
    keep = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)) if count else np.arange(0)
    return [array[keep] for array in arrays]


def draw_curves(
    axes: Any, lines: Sequence[tuple[int, Line]], name: str, scale: float, system: System | None = None
) -> bool:
    """A figure against rounds, or against time, with a band of one standard error. Whether there was anything."""
    seen: list[np.ndarray] = []
    for index, line in lines:
        x, y, error = line.curve(name)
        if np.isnan(y).all():
            continue
        if system is not None:
            x = np.mean([system.elapsed(run)[np.isin(run.rounds, x)] for run in line.runs], 0)
        x, y, error = thinned(x, scale * y, scale * error)
        axes.plot(x, y, marker="." if len(x) == 1 else None, **style(index))
        if error.any():
            axes.fill_between(x, y - error, y + error, color=style(index)["color"], alpha=0.15, linewidth=0)
        seen.append(y[~np.isnan(y)])
    values = np.concatenate(seen) if seen else np.array([])
    finite = values[np.isfinite(values)]
    if "accuracy" not in name and len(finite) and finite.min() > 0 and finite.max() > 30 * finite.min():
        logarithmic(axes, "y")
    axes.set_xlabel("time, T_dl = 1" if system else "round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return bool(len(values))


def curves(comparison: Comparison) -> str | None:
    """Accuracy, loss, worst client, worst 10 % and distance to the known best, against rounds."""
    names = {"accuracy_mean": "mean accuracy, %", "loss_mean": "mean loss", "accuracy_worst": "worst client, %",
             "accuracy_worst10": "worst 10 % of clients, %",
             "error_mean": "mean distance to the best model"}  # fmt: skip
    numbered = list(enumerate(comparison.lines))
    wanted = []
    for what in names:
        for kind in KIND:
            lines = [
                (i, line)
                for i, line in numbered
                if any(not np.isnan(run.curve(f"{kind}_{what}")).all() for run in line.runs)
            ]
            wanted += [(what, kind, lines)] if lines else []
    if not wanted:
        return None
    with panels(len(wanted)) as (canvas, grid):
        for axes, (what, kind, lines) in zip(grid, wanted, strict=True):
            draw_curves(axes, lines, f"{kind}_{what}", 100 if "accuracy" in what else 1)
            axes.set_title(f"{names[what]}: {KIND[kind]}")
        return svg(canvas, "curves")


def against_time(comparison: Comparison, systems: Sequence[System]) -> str:
    """Mean accuracy against normalised time, a row of panels for each system."""
    numbered = list(enumerate(comparison.lines))
    wanted = [(system, kind) for system in systems for kind in KIND]
    with panels(len(wanted)) as (canvas, grid):
        for axes, (system, kind) in zip(grid, wanted, strict=True):
            draw_curves(axes, numbered, f"{kind}_accuracy_mean", 100, system)
            axes.set_title(f"accuracy, %, {KIND[kind]}: {system}", fontsize=8.5)
        return svg(canvas, "time")


def density(comparison: Comparison) -> str | None:
    """The density of QoI over clients and runs: normal kernels, their width by Silverman's rule."""
    found = [(i, np.concatenate(quanta)) for i, line in enumerate(comparison.lines)
             if (quanta := comparison.improvement(line))]  # fmt: skip
    found = [(i, 100 * q[~np.isnan(q)]) for i, q in found]
    found = [(i, q) for i, q in found if len(np.unique(q)) > 1]  # a peak of no width would hide the others
    if not found:
        return None
    least, most = min(q.min() for _, q in found), max(q.max() for _, q in found)
    x = np.linspace(least - 5, most + 5, 160)
    with panels(1, height=2.8) as (canvas, (axes,)):
        for i, q in found:
            width = max(
                0.5, 0.9 * min(q.std(), np.subtract(*np.percentile(q, [75, 25])) / 1.34 or q.std()) * len(q) ** -0.2
            )
            y = np.exp(-(((x[:, None] - q) / width) ** 2) / 2).sum(1) / (len(q) * width * math.sqrt(2 * math.pi))
            axes.plot(x, y, **style(i))
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("QoI, percentage points")
        axes.set_ylabel("density")
        return svg(canvas, "density")


def fairness_bars(comparison: Comparison) -> str | None:
    """The four figures of fairness over accuracies, for every line."""
    every = [(i, fairness_of(comparison, line).get("accuracy")) for i, line in enumerate(comparison.lines)]
    found = [(i, figures) for i, figures in every if figures]
    if not found:
        return None
    titles = {"variance": "variance", "cosine": "cosine with the equal vector", "entropy": "entropy of shares",
              "jain": "Jain's index"}  # fmt: skip
    with panels(4, columns=4, height=1.0 + 0.16 * max(6, len(found))) as (canvas, grid):
        for axes, (name, title) in zip(grid, titles.items(), strict=True):
            there = [(i, figure) for i, figures in found if (figure := figures[name]) is not None]
            values = [figure.mean for _, figure in there]
            axes.barh(range(len(there)), values, color=[fill(i) for i, _ in there], height=0.75,
                      xerr=[figure.error or 0 for _, figure in there],
                      error_kw={"ecolor": INK, "linewidth": 0.8})  # fmt: skip
            axes.set_yticks([])
            axes.invert_yaxis()
            axes.set_title(title, fontsize=8.5)
            if values and name in ("cosine", "jain"):
                axes.set_xlim(max(0.0, 1 - 1.6 * (1 - min(values)) - 0.01), 1)
            axes.locator_params(axis="x", nbins=4)
        return svg(canvas, "fairness")


def by_size(comparison: Comparison) -> str | None:
    """Accuracy against the number of training samples: clients as dots, and means of ten classes of equal numbers."""
    with panels(1, height=3.0) as (canvas, (axes,)):
        sizes: list[np.ndarray] = []
        for i, line in enumerate(comparison.lines):
            pairs = [(run.series["n_train"], a) for run in line.runs if (a := run.accuracies("personal")) is not None]
            if not pairs:
                continue
            n, a = (np.concatenate(part) for part in zip(*pairs, strict=True))
            n, a = n[~np.isnan(a)], 100 * a[~np.isnan(a)]
            sizes.append(n)
            axes.scatter(n, a, s=5, alpha=0.3, color=style(i)["color"], linewidth=0, rasterized=True)
            classes = [part for part in np.array_split(np.argsort(n, kind="stable"), 10) if len(part)]
            axes.plot([n[c].mean() for c in classes], [a[c].mean() for c in classes], marker=".", **style(i))
        if not sizes or len(np.unique(np.concatenate(sizes))) < 2:
            return None
        every = np.concatenate(sizes)
        if every.min() > 0 and every.max() > 10 * every.min():
            logarithmic(axes, "x")
        axes.set_xlabel("training samples of the client")
        axes.set_ylabel("accuracy, %")
        return svg(canvas, "size")


def phases(comparison: Comparison) -> str | None:
    """Seconds of each phase, mean over ranks and runs, as bars on each other."""
    lines = [line for line in comparison.lines if line.runs[0].finished]
    names = phase_names(comparison)
    if not lines or not names:
        return None
    with panels(1, height=1.1 + 0.22 * len(lines)) as (canvas, (axes,)):
        left = np.zeros(len(lines))
        for number, name in enumerate(names):
            width = np.array([mean(line, "phases_seconds", name, "mean") or 0.0 for line in lines])
            axes.barh(range(len(lines)), width, left=left, label=name, color=COLOURS[number % len(COLOURS)], height=0.7)
            left += width
        axes.set_yticks(range(len(lines)), [line.label for line in lines])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.grid(False, axis="y")
        canvas.subplots_adjust(left=min(0.5, 0.03 + 0.0125 * max(len(line.label) for line in lines)))
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        canvas.subplots_adjust(top=1 - 0.45 / canvas.get_figheight())
        return svg(canvas, "phases")
