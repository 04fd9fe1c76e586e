"""The curves of `benchmarks.model`: seconds and efficiency against ranks, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from .common import Row
from .model_ask import WORTH, Scenario
from .model_round import TERMS
from .picture import save, texts

COLOURS = colormaps["tab20"]


def draw(scenarios: list[Scenario], tables: Mapping[str, Sequence[Row]], title: str, into: Path) -> None:
    """One file, HTML or PNG by its name."""
    body = f"<p>{escape(title)}</p>{texts(tables)}"
    save(picture(scenarios, title), into, "A round, predicted", "seconds and efficiency against ranks", body)


def picture(scenarios: list[Scenario], title: str) -> Figure:
    """Two sets of curves over all scenarios, and what a round is made of in each of them."""
    lines = 1 + -(-len(scenarios) // 2)
    figure = Figure(figsize=(11, 3.6 * lines), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(lines, 2, squeeze=False)
    time, efficiency = axes[0]
    for one in scenarios:
        ranks = [point.ranks for point in one.points]
        time.loglog(ranks, [point.seconds for point in one.points], marker=".", label=name(one))
        efficiency.semilogx(ranks, [point.efficiency for point in one.points], marker=".")
    efficiency.axhline(WORTH, color="grey", ls=":")
    efficiency.set(xlabel="ranks", title="efficiency", ylim=(0, None))
    time.set(xlabel="ranks", title="seconds of a round")
    time.legend(fontsize="x-small")
    for axis in (time, efficiency):
        axis.minorticks_off()
        axis.set_xticks(ranks, [f"{count}" for count in ranks])
    for axis, one in zip(axes[1:].flat, scenarios, strict=False):
        shares(axis, one)
    for axis in axes[1:].flat[len(scenarios) :]:
        axis.remove()
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="small")
    return figure


def shares(axis: Any, one: Scenario) -> None:
    """Each term's share of a round."""
    parts = [[point.terms[term].path / point.seconds for point in one.points] for term in TERMS]
    axis.stackplot(range(len(one.points)), parts, labels=TERMS, colors=COLOURS(range(len(TERMS))))
    axis.set(title=name(one), xlabel="ranks", ylabel="share of a round", ylim=(0, 1), xlim=(0, len(one.points) - 1))
    axis.set_xticks(range(len(one.points)), [f"{point.ranks}" for point in one.points])


def name(one: Scenario) -> str:
    drawn = "all" if one.task.drawn == one.task.clients else f"{one.task.drawn:,}"
    return f"{one.task.clients:,} clients, {drawn} drawn"
