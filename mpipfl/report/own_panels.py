"""What the methods' pictures show, one function a panel; `own.py` says which belongs to which method."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from .pictures import COLOURS, INK, logarithmic
from .runs import Run

EQUAL = 0.05  # coefficient of variation of confidences below which weighting by them does nothing


AXES = ("lambda", "temperature")  # of PersFL's grid


class Skip(Exception):
    """Nothing to draw, with the reason."""


class Scene(NamedTuple):
    """What a panel draws."""

    run: Run
    own: dict[str, np.ndarray]  # the method's series by name
    colour: str
    average: Run | None  # a FedAvg run beside it
    average_colour: str


def band(axes: Any, x: np.ndarray, values: np.ndarray, colour: str, label: str = "") -> None:
    """The median over clients of each round, and the quartiles around it; NaN is nobody."""
    there = ~np.isnan(values).all(1)
    low, middle, high = np.nanquantile(values[there], [0.25, 0.5, 0.75], axis=1)
    axes.plot(x[there], middle, color=colour, label=label)
    axes.fill_between(x[there], low, high, color=colour, alpha=0.25, linewidth=0)
    axes.set_xlabel("round")


def over_decades(axes: Any, *values: np.ndarray) -> None:
    """A logarithmic axis where numbers are positive and span decades."""
    found = np.concatenate([v[np.isfinite(v)].ravel() for v in values])
    if len(found) and found.min() > 0 and found.max() > 20 * found.min():
        logarithmic(axes, "y")


def last_row(values: np.ndarray) -> np.ndarray:
    """The last round's values of those who have one."""
    row = values[-1]
    return row[~np.isnan(row)]


def whole_bins(values: np.ndarray) -> np.ndarray:
    """Edges of at most 40 bins around whole numbers."""
    least, most = int(values.min()), int(values.max())
    width = max(1, -(-(most - least + 1) // 40))
    return np.arange(least - 0.5, most + width + 0.5, width)


# ---------------------------------------------------------------------- Self-FL


def uncertainties(axes: Any, scene: Scene) -> None:
    x, between, own = scene.own["round"], scene.own["sigma2_0"], scene.own["sigma2_m"]
    axes.plot(x, between, color=INK, linestyle="dashed", label="σ₀²")
    band(axes, x, own, scene.colour, "σₘ²")
    over_decades(axes, between, own)
    axes.legend()


def last_steps(axes: Any, scene: Scene) -> None:
    steps = last_row(scene.own["steps"])
    if not len(steps):
        raise Skip("as nobody was active")
    axes.hist(steps, bins=whole_bins(steps), color=scene.colour)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(max(0, steps.min() - 2), steps.max() + 2)
    axes.set_xlabel("l")
    axes.set_ylabel("clients")


def steps_of_one(axes: Any, scene: Scene) -> str:
    """Of the client that was active most often."""
    steps = scene.own["steps"]
    client = int((~np.isnan(steps)).sum(0).argmax())
    there = ~np.isnan(steps[:, client])
    axes.plot(
        scene.own["round"][there], steps[there, client], marker=".", markersize=3, linewidth=0.8, color=scene.colour
    )
    axes.set_xlabel("round")
    axes.set_ylabel("l")
    return f"One client: the one active most often, client {client}."


def rules(axes: Any, scene: Scene) -> None:
    names = {0: "by (8)", 1: "unknown σₘ²: l_max", 2: "η ≥ σₘ²: 1", -1: "fixed"}
    rule = scene.own["rule_used"]
    active = np.maximum((~np.isnan(rule)).sum(1), 1)
    for number, (value, name) in enumerate(names.items()):
        if (rule == value).any():
            axes.plot(scene.own["round"], (rule == value).sum(1) / active, label=name, color=COLOURS[number])
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("round")
    axes.legend()


def accuracies(axes: Any, scene: Scene) -> None:
    mine = scene.run.accuracies("personal")
    theirs = None if scene.average is None else scene.average.accuracies("global")
    if mine is None or theirs is None:
        raise Skip("as it needs this run's and a FedAvg run's history.h5, same seed")
    pairs = [(a[~np.isnan(a)] * 100, colour, label) for a, colour, label in
             ((theirs, scene.average_colour, "FedAvg"), (mine, scene.colour, "personal"))]  # fmt: skip
    edges = np.linspace(min(a.min() for a, _, _ in pairs), max(a.max() for a, _, _ in pairs) + 1e-9, 21)
    for values, colour, label in pairs:
        axes.hist(values, bins=edges, color=colour, alpha=0.55, label=label)
    axes.set_xlabel("accuracy, %")
    axes.set_ylabel("clients")
    axes.legend()


# ---------------------------------------------------------------------- clusters, helpers


def clusters(axes: Any, scene: Scene) -> None:
    """A client that was not active stays where it was heard last."""
    cluster = scene.own["cluster"].copy()
    for before, row in pairwise(cluster):
        row[np.isnan(row)] = before[np.isnan(row)]
    names = np.unique(cluster[~np.isnan(cluster)]).astype(int)
    for number, name in enumerate(names):
        axes.plot(scene.own["round"], (cluster == name).sum(1), color=COLOURS[number % len(COLOURS)], label=str(name))
    axes.set_xlabel("round")
    axes.set_ylabel("clients")
    if len(names) <= 6:
        axes.legend(ncols=2)


def helpers(axes: Any, scene: Scene) -> None:
    band(axes, scene.own["round"], scene.own["helpers"], scene.colour)


# ---------------------------------------------------------------------- user-centric


def mixing(axes: Any, scene: Scene) -> str | None:
    """W with its rows and columns by cluster, or by true group where every client is one; the true group of each row is
    the colour on its left."""
    weight = scene.own["W"]
    count, group = len(weight), scene.run.group
    group = np.zeros(count, int) if group is None or len(group) != count else group
    cluster = scene.own.get("cluster", np.zeros(count))
    if len(cluster) != count or len(np.unique(cluster)) == count:
        cluster = np.zeros(count)
    order = np.lexsort((np.arange(count), group, cluster))
    axes.imshow(weight[np.ix_(order, order)], cmap="viridis", aspect="auto", interpolation="nearest")
    for edge in np.flatnonzero(np.diff(cluster[order])):
        axes.axhline(edge + 0.5, color="white", linewidth=0.6)
        axes.axvline(edge + 0.5, color="white", linewidth=0.6)
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"from client; greatest weight {weight.max():.2g}")
    axes.set_ylabel("to client", labelpad=10)
    lines = "White lines: the clusters." if cluster.any() else None
    if not group.any():
        return lines
    place = axes.get_yaxis_transform()
    for name in np.unique(group):
        rows = np.flatnonzero(group[order] == name)
        axes.vlines(np.full(len(rows), -0.03), rows - 0.5, rows + 0.5, transform=place, clip_on=False, linewidth=4,
                    color=COLOURS[int(name) % len(COLOURS)])  # fmt: skip
    return " ".join(filter(None, ["Colours left of W: the true groups.", lines]))


def silhouette(axes: Any, scene: Scene) -> str | None:
    score = scene.own["silhouette"].ravel()
    k = np.arange(1, len(score) + 1)
    axes.plot(k, score, marker=".", color=scene.colour)
    axes.set_xlabel("k")
    streams = len(np.unique(scene.own["cluster"])) if "cluster" in scene.own else len(score)
    if streams == len(score):
        return None
    axes.axvline(streams, color=INK, linewidth=0.7, linestyle="dotted")
    return "Dotted: the number of streams."


def collaborators(axes: Any, scene: Scene) -> None:
    axes.hist(scene.own["collaborators"].ravel(), bins=20, color=scene.colour)
    axes.set_xlabel("exp(entropy of the client's row)")
    axes.set_ylabel("clients")


# ---------------------------------------------------------------------- pFedVEM


def confidence(axes: Any, scene: Scene) -> str | None:
    tau, n = scene.own["tau"][-1], scene.run.series["n_train"]
    axes.scatter(n, tau, s=8, color=scene.colour, linewidth=0)
    over_decades(axes, tau)
    axes.set_xlabel("training samples")
    weight = scene.own.get("weight", scene.own["tau"])[-1]  # another one than tau in the ablations
    known = weight[~np.isnan(weight)]
    variation = known.std() / known.mean() if len(known) and known.mean() else 0.0
    if variation >= EQUAL:
        return None
    return (
        f"The confidences τ of the last round are so close to equal (coefficient of variation {100 * variation:.1f} %) "
        f"that weighting by them does nothing."
    )


def course_of_confidence(axes: Any, scene: Scene) -> None:
    band(axes, scene.own["round"], scene.own["tau"], scene.colour)
    over_decades(axes, scene.own["tau"])


# ---------------------------------------------------------------------- PersFL


def teachers(axes: Any, scene: Scene) -> None:
    teacher = scene.own["teacher_round"]
    axes.bar(range(len(teacher)), teacher, color=scene.colour)
    axes.set_xlabel("client")
    axes.set_ylabel("round")


def grid(client: int | None = None) -> Callable[[Any, Scene], None]:
    """Accuracy against lambda for each T: of one client, or the mean over all."""

    def draw(axes: Any, scene: Scene) -> None:
        accuracy = scene.own["grid_accuracy"]
        strength, temperature = np.array(list(product(*(scene.run.settings[f"algorithm.{k}s"] for k in AXES)))).T
        if client is not None and client >= len(accuracy):
            raise Skip("as there are not so many clients")
        values = 100 * (np.nanmean(accuracy, 0) if client is None else accuracy[client])
        for number, value in enumerate(np.unique(temperature)):
            points = np.flatnonzero(temperature == value)
            points = points[np.argsort(strength[points], kind="stable")]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(strength[points], values[points], marker=".", markersize=3, color=colour, label=f"T = {value:g}")
        if client is not None and "chosen" in scene.own and scene.own["chosen"][client] >= 0:
            best = int(scene.own["chosen"][client])
            axes.plot(strength[best], values[best], marker="o", markersize=8, fillstyle="none", color=INK)
        axes.set_xlabel("λ")
        axes.set_ylabel("%")
        if client is None:
            axes.legend(ncols=2, fontsize=7)

    return draw
