"""Results against a setting: where lines differ in one number, such as the share of active clients or a part's size."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from .compare import Comparison, Line, deciding, differing, shown
from .pictures import KIND, logarithmic, panels, style, svg

LEAST = 3  # values of the setting from which on there is something to see


class Course(NamedTuple):
    """Lines that differ in one number only."""

    label: str
    points: list[tuple[float, Line]]  # by the number


def courses(comparison: Comparison) -> dict[str, list[Course]]:
    """For each setting that some lines differ in alone: its courses."""
    keys = differing([line.runs[0] for line in comparison.lines])
    found: dict[str, list[Course]] = {}
    for key in keys:
        groups: dict[Any, list[tuple[float, Line]]] = {}
        for line in comparison.lines:
            settings = deciding(line.runs[0])
            value = settings.pop(key, None)
            if isinstance(value, Real) and not isinstance(value, bool):
                groups.setdefault(repr(sorted(settings.items(), key=str)), []).append((float(value), line))
        every = [sorted(points, key=lambda point: point[0]) for points in groups.values()]
        found[key] = [Course(label(key, points[0][1], keys), points) for points in every if len(points) >= LEAST]
    return {key: some for key, some in found.items() if some}


def label(key: str, line: Line, keys: list[str]) -> str:
    """The method, and what besides the setting tells this course from others."""
    settings = {k: v for k, v in line.own.items() if k in keys and k != key and not k.startswith("algorithm.")}
    return " ".join([line.method, *(f"{k}={shown(v)}" for k, v in settings.items())])


def pictures(comparison: Comparison) -> list[tuple[str, str]]:
    """A picture for each setting, with its name."""
    return [(key, picture(key, some)) for key, some in courses(comparison).items()]


def picture(key: str, some: list[Course]) -> str:
    figures = {"accuracy_mean": "accuracy, %", "error_mean": "mean distance to the best models"}
    last = some[0].points[0][1].runs[0].last
    wanted = [
        (kind, name)
        for kind in ("personal", "global")
        for name in figures
        if np.isfinite(last.get(f"{kind}_{name}", np.nan))
    ]
    with panels(max(1, len(wanted))) as (canvas, grid):
        for axes, (kind, name) in zip(grid, wanted, strict=False):
            for number, course in enumerate(some):
                draw(axes, course, f"{kind}_{name}", style(number))
            axes.set_title(f"{figures[name]}: {KIND[kind]}")
            axes.set_xlabel(key)
            if name == "error_mean":
                logarithmic(axes, "y")
        grid[0].legend(fontsize=6)
        return svg(canvas, f"across {key}")


def draw(axes: Any, course: Course, name: str, look: dict[str, Any]) -> None:
    """Means over seeds with their standard errors."""
    scale = 100 if name.endswith("accuracy_mean") else 1
    found = [(x, line.figure(lambda run: run.last.get(name))) for x, line in course.points]
    there = [(x, figure) for x, figure in found if figure is not None]
    axes.errorbar(
        [x for x, _ in there], [scale * figure.mean for _, figure in there],
        yerr=[scale * (figure.error or 0) for _, figure in there], label=course.label, marker=".", **look,
    )  # fmt: skip
