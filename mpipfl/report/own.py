"""The pictures of single methods: a registry from a method's name to what it draws from its group of history.h5.

A panel is a title, the series it needs, and a function that draws on axes and may return a sentence for the reader.
What was not recorded is said and skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..detection import NAME as DETECTION
from . import detection
from . import own_panels as draw
from .compare import Comparison, Line
from .own_panels import Scene
from .pictures import panels, style, svg
from .runs import Run, short


class Panel(NamedTuple):
    """One drawing of a method's picture."""

    title: str
    needs: tuple[str, ...]
    draw: Callable[[Any, Scene], str | None]


MOST = 10  # lines of a method that are drawn
SELFFL = (
    Panel("uncertainties: σ₀², and σₘ² with its quartiles", ("round", "sigma2_0", "sigma2_m"), draw.uncertainties),
    Panel("local steps l in the last round", ("steps",), draw.last_steps),
    Panel("local steps l of one client", ("round", "steps"), draw.steps_of_one),
    Panel("share of active clients by rule for l", ("round", "rule_used"), draw.rules),
    Panel("client accuracies beside FedAvg's", (), draw.accuracies),
)
CLUSTERS = (Panel("clients by cluster, as last heard", ("round", "cluster"), draw.clusters),)
REGISTRY: dict[str, tuple[Panel, ...]] = {
    "selffl": SELFFL,
    "selffl_augmented": SELFFL,
    "ifca": CLUSTERS,
    "cfl": CLUSTERS,
    "fedfomo": (Panel("models that helped a client", ("round", "helpers"), draw.helpers),),
    "ucfl": (
        Panel("mixing weights W, clients by cluster", ("W",), draw.mixing),
        Panel("silhouette against the number of streams k", ("silhouette",), draw.silhouette),
        Panel("effective collaborators of a client", ("collaborators",), draw.collaborators),
    ),
    "pfedvem": (
        Panel("confidence τ against training samples, last round", ("tau",), draw.confidence),
        Panel("confidence τ, with its quartiles", ("round", "tau"), draw.course_of_confidence),
    ),
    "persfl": (
        Panel("round of the optimal teacher", ("teacher_round",), draw.teachers),
        Panel("validation accuracy against λ, mean", ("grid_accuracy",), draw.grid()),
        *(Panel(f"validation accuracy against λ, client {client}", ("grid_accuracy",),
                draw.grid(client)) for client in range(4)),
    ),
    DETECTION: tuple(  # of any method
        Panel(f"relative false accepts, {model} model", ("label", "state", "baseline", model), detection.panel(model))
        for model in ("global", "personal")
    ),
}  # fmt: skip


def pictures(comparison: Comparison) -> list[tuple[Line, str | None, list[str]]]:
    """For each line whose method has pictures of its own, or that detects: the picture of its first run, and what is to
    be said."""
    found: list[tuple[Line, str | None, list[str]]] = []
    drawn: Counter[str] = Counter()
    for index, line in enumerate(comparison.lines):
        run = line.runs[0]
        for name in subjects(run):
            drawn[name] += 1
            if drawn[name] > MOST:
                found.append((line, None, [f"Not drawn: pictures of {MOST} lines of this kind are above."]))
                continue
            average = comparison.baseline("fedavg", run)
            names = [other.runs for other in comparison.lines]
            place = next((i for i, runs in enumerate(names) if average in runs), 0)
            scene = Scene(run, run.own(name), style(index)["color"], average, style(place)["color"])
            found.append((line, *picture(scene, REGISTRY[name], f"own {name} {index}")))
    return found


def subjects(run: Run) -> list[str]:
    """What of a run has pictures: its method, and what it detected."""
    return [
        name
        for name in dict.fromkeys((run.method, DETECTION))
        if name in REGISTRY and (name == run.method or run.own(name))
    ]


def picture(scene: Scene, wanted: Sequence[Panel], name: str) -> tuple[str | None, list[str]]:
    """Some panels in one drawing, and remarks."""
    said, ready = [], []
    for panel in wanted:
        missing = [need for need in panel.needs if need not in scene.own or not scene.own[need].size]
        if missing:
            said.append(f"{panel.title}: not drawn, as {', '.join(missing)} is not in history.h5")
        else:
            ready.append(panel)
    if not ready:
        return None, said
    with panels(len(ready), columns=3, height=2.5) as (canvas, grid):
        drawn = 0
        for axes, panel in zip(grid, ready, strict=True):
            axes.set_title(panel.title, fontsize=8.5)
            try:
                said += [sentence] if (sentence := panel.draw(axes, scene)) else []
                drawn += 1
                if axes.get_xlabel() == "round":
                    axes.xaxis.get_major_locator().set_params(integer=True)
            except draw.Skip as reason:
                said.append(f"{panel.title}: not drawn, {reason}")
                axes.remove()
            except (ValueError, IndexError, TypeError, KeyError) as error:  # a file that others wrote may hold anything
                said.append(f"{panel.title}: cannot be drawn ({short(error)})")
                axes.remove()
        return (svg(canvas, name) if drawn else None), said
