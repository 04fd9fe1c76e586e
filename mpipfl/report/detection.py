"""What a report shows of runs that detect a wake word: relative false accepts by device and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import detection
from ..detection import ALL, NAME
from .compare import Comparison, over_runs
from .own_panels import Scene, Skip
from .pictures import COLOURS, INK
from .runs import Run
from .tables import Cell, Column, Table


def cells(run: Run) -> list[detection.Cell]:
    """A run's figures; none where it does not detect, or its files do not say enough."""
    series = run.own(NAME)
    if not {"label", "state", "baseline"} <= set(series) or run.group is None:
        return []
    return detection.cells(series, run.group[run.clients], states(run))


def states(run: Run) -> list[str]:
    return [str(name) for name in run.settings.get("data.source.states", [])]


def table(comparison: Comparison) -> Table | None:
    """A row for each line, kind of model and device; a column for each state."""
    found = [(line, [cells(run) for run in line.runs]) for line in comparison.lines]
    names = list(dict.fromkeys(cell.state for _, runs in found for one in runs for cell in one))
    if not names:
        return None
    rows: list[list[Cell]] = []
    leagues: list[str] = []
    for line, runs in found:
        every = [cell for one in runs for cell in one]
        for model, device in dict.fromkeys((cell.model, cell.device) for cell in every):
            own = {name: [c for c in every if c[:3] == (model, device, name)] for name in names}
            accepts: list[Cell] = [figure([c.relative_false_accepts for c in own[name]]) for name in names]
            rejects = figure([c.relative_false_rejects for c in own[ALL]])
            before = over_runs(c.baseline_false_accepts for c in own[ALL])
            rows.append([line.label, model, device, *accepts, rejects, before])
            leagues.append(f"{model} {device}")
    columns = [Column("method"), Column("model"), Column("device"),
               *(Column("all states" if name == ALL else name, 2, "low") for name in names),
               Column("false rejects", 2), Column("baseline's false accepts", 0)]  # fmt: skip
    caption = (
        "False accepts on the device's test data, last round, relative to those of the model that training began with, "
        "each at the threshold where it rejects as many wake words as that model does at 0, or nearly, and accepts "
        "least (false rejects in the column: relative to its, over all states). Below 1 is better; NA: it has none."
    )
    return Table(NAME, "False accepts of the wake word", columns, rows, caption, leagues)


def figure(values: list[float | None]) -> Cell:
    """Over the runs that have a value."""
    return over_runs(values) or "NA"


def panel(model: str) -> Callable[[Any, Scene], str | None]:
    """Relative false accepts of a kind of model: devices side by side, a bar for each state."""

    def draw(axes: Any, scene: Scene) -> str | None:
        found = [cell for cell in cells(scene.run) if cell.model == model]
        if not found:
            raise Skip("as partition.h5 does not tell the devices")
        devices = list(dict.fromkeys(cell.device for cell in found))
        names = list(dict.fromkeys(cell.state for cell in found if cell.state != ALL)) or [ALL]
        for number, name in enumerate(names):
            height = {c.device: c.relative_false_accepts for c in found if c.state == name}
            place = np.arange(len(devices)) + (number - (len(names) - 1) / 2) * 0.8 / len(names)
            values = [np.nan if height.get(device) is None else height[device] for device in devices]
            axes.bar(
                place, values, 0.8 / len(names), label="all states" if name == ALL else name, color=COLOURS[number]
            )
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set_xticks(np.arange(len(devices)), devices)
        axes.set_xlabel("device")
        axes.legend(fontsize=6)
        missing = [f"{c.device} {c.state}" for c in found if c.state != ALL and c.relative_false_accepts is None]
        return f"No bar, as the baseline has no false accepts ({model}): {', '.join(missing)}." if missing else None

    return draw
