"""The pictures that methods have of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpipfl.report import own, own_panels
from mpipfl.report.page import page
from mpipfl.report.runs import Run, read

from . import folders
from .folders import compared, rising, three, write
from .pages import Reader, checked

NAN = float("nan")
GROUPS = np.arange(12) % 3
OWN = {
    "selffl": folders.of_selffl(6, 12),
    "selffl_augmented": folders.of_selffl(6, 12),
    "ifca": {"round": np.arange(1, 7), "cluster": np.where(np.arange(72).reshape(6, 12) % 5 == 0, NAN, 1.0)},
    "cfl": {"round": np.arange(1, 7), "cluster": np.tile(GROUPS, (6, 1))},
    "fedfomo": {"round": np.arange(1, 7), "helpers": np.ones((6, 12))},
    "ucfl": folders.of_ucfl(12, GROUPS),
    "pfedvem": {"round": np.arange(1, 7), "tau": np.tile(np.linspace(1, 9, 12), (6, 1))},
    "persfl": folders.of_persfl(12),
    "detection": folders.of_detection(12),
}


def drawn(tmp_path: Path, method: str, series: dict[str, np.ndarray]) -> tuple[str, list[str]]:
    path = write(tmp_path / method, method, rising(7, 12, 0.6), rising(7, 12, 0.5), own=series, groups=GROUPS)
    average = write(tmp_path / "fedavg", "fedavg", rising(7, 12, 0.5), groups=GROUPS)
    ((_, picture, said),) = own.pictures(compared(path, average))
    return picture or "", said


@pytest.mark.parametrize("method", sorted(own.REGISTRY))
def test_methods_draw(method: str, tmp_path: Path) -> None:
    picture, said = drawn(tmp_path, method, OWN[method])
    Reader(picture)
    assert all(panel.title in picture for panel in own.REGISTRY[method])
    assert not any("drawn" in sentence for sentence in said), said


@pytest.mark.parametrize("method", sorted(own.REGISTRY))
def test_what_a_method_did_not_record_is_said(method: str, tmp_path: Path) -> None:
    _, said = drawn(tmp_path, method, {})
    needing = [panel for panel in own.REGISTRY[method] if panel.needs]
    assert len([sentence for sentence in said if "not drawn" in sentence]) == len(needing)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    picture, said = drawn(tmp_path, "selffl", OWN["selffl"] | {"round": np.arange(3), "sigma2_0": np.ones((6, 2, 2))})
    assert any("cannot be drawn" in sentence for sentence in said) and "local steps l in the last round" in picture


@pytest.mark.parametrize(("spread", "said"), [(0.1, True), (0.2, False)])
def test_equal_confidences_are_noticed(spread: float, said: bool, tmp_path: Path) -> None:
    """A uniform spread s around 1 has the coefficient of variation s / sqrt(12), here 3 % and 6 %."""
    tau = np.tile(np.linspace(1 - spread / 2, 1 + spread / 2, 12), (6, 1))
    _, sentences = drawn(tmp_path, "pfedvem", {"round": np.arange(1, 7), "tau": tau})
    assert any("weighting by them does nothing" in sentence for sentence in sentences) == said


def test_clusters_are_as_last_heard(tmp_path: Path) -> None:
    class Axes:
        lines: dict[str, list[int]] = {}  # noqa: RUF012

        def plot(self, x: np.ndarray, y: np.ndarray, label: str, **_: object) -> None:
            self.lines[label] = y.tolist()

        def __getattr__(self, name: str):
            return lambda *_, **__: None

    cluster = np.array([[0, NAN, 1], [NAN, 1, NAN], [1, NAN, NAN]])
    run: Run = read(three(tmp_path)[0])
    own_panels.clusters(Axes(), own_panels.Scene(run, {"round": np.arange(3), "cluster": cluster}, "", None, ""))
    assert Axes.lines == {"0": [1, 1, 0], "1": [1, 2, 3]}


class Drawn:
    """Axes that keep what is drawn on them."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **_: self.calls.setdefault(name, []).append(given)


def mixing(tmp_path: Path, own: dict[str, np.ndarray], group: np.ndarray) -> tuple[Drawn, str | None]:
    m = len(group)
    run = read(write(tmp_path / "run", "ucfl", rising(2, m, 0.5), groups=group))
    axes = Drawn()
    return axes, own_panels.mixing(axes, own_panels.Scene(run, own, "red", None, ""))


def test_weights_are_drawn_by_cluster_with_the_true_groups_beside(tmp_path: Path) -> None:
    cluster, group = np.array([1, 0, 2, 0, 1, 0]), np.array([0, 1, 2, 1, 2, 0])
    weight = np.arange(36.0).reshape(6, 6)
    axes, said = mixing(tmp_path, {"W": weight, "cluster": cluster}, group)
    order = [5, 1, 3, 0, 4, 2]  # clusters 0, 1, 2; within them by group, then by client
    assert axes.calls["imshow"][0][0].tolist() == [[weight[i, j] for j in order] for i in order]
    assert [edge for (edge,) in axes.calls["axhline"]] == [2.5, 4.5] == [edge for (edge,) in axes.calls["axvline"]]
    marks = [(low + 0.5).tolist() for _, low, _ in axes.calls["vlines"]]
    assert marks == [[0, 3], [1, 2], [4, 5]]  # where the rows of groups 0, 1 and 2 are
    assert said == "Colours left of W: the true groups. White lines: the clusters."


def test_weights_without_clusters_are_drawn_by_group(tmp_path: Path) -> None:
    weight = np.arange(16.0).reshape(4, 4)
    axes, said = mixing(tmp_path, {"W": weight, "cluster": np.arange(4)}, np.array([1, 0, 1, 0]))
    order = [1, 3, 0, 2]
    assert axes.calls["imshow"][0][0].tolist() == [[weight[i, j] for j in order] for i in order]
    assert "axhline" not in axes.calls and said == "Colours left of W: the true groups."


@pytest.mark.parametrize(("cluster", "marked"), [([0, 0, 1, 2, 1], 3), ([0, 0, 0, 0, 0], 1), ([0, 1, 2, 3, 4], None)])
def test_the_number_of_streams_is_marked(cluster: list[int], marked: int | None, tmp_path: Path) -> None:
    """Also where another number has a greater silhouette."""
    own = {"silhouette": np.array([NAN, 0.9, 0.2, 0.1, 0.0]), "cluster": np.array(cluster)}
    axes = Drawn()
    said = own_panels.silhouette(axes, own_panels.Scene(read(three(tmp_path)[0]), own, "red", None, ""))
    ((k, score),) = axes.calls["plot"]
    assert k.tolist() == [1, 2, 3, 4, 5] and score[1] == 0.9
    assert [x for (x,) in axes.calls.get("axvline", [])] == ([] if marked is None else [marked])
    assert said == (None if marked is None else "Dotted: the number of streams.")


def test_distances_to_the_best_models_are_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "ditto", np.full((3, 4), NAN))
    folders.rewrite_history(path, personal__error=np.ones((3, 4)), global__error=np.full((3, 4), 2.0))
    (path / "metrics.csv").unlink()
    html = page(compared(path))
    checked(html)
    assert "mean distance to the best model" in html and "1.00000" in html and "mean accuracy, %" not in html
