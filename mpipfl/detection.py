"""How well models tell a wake word from other words, by device and state, compared with what training began with.

A score is the logit of the wake word minus that of the others; from 0 on a model says "wake word". The baseline is the
model that training began with (`algorithm.warm_start`). In each cell, a device in a state (or in all, `*`), both stand
at a threshold of their own: where they reject as many wake words as the baseline does at 0, or nearly, and accept as
little else as goes with that (`metrics.false_accepts_at`); then

    relative false accepts = FA / FA of the baseline         1: no better; NA where the baseline has none
    relative false rejects = FR / FR of the baseline         about 1 by the choice of the threshold

All scores are kept in history.h5 under `detection`, a row per evaluated client, a column per test sample (NaN beyond
its last); the figures of the last round are in detection.csv.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from .data.devices import NAMES
from .data.partition import Partition
from .files import whole
from .metrics import false_accepts_at

if TYPE_CHECKING:
    from .algorithms import Algorithm
    from .cohort import Cohort

NAME = "detection"  # of the group in history.h5
KINDS = ("global", "personal")
ALL = "*"  # states


class Cell(NamedTuple):
    """A model in one device and state."""

    model: str
    device: str
    state: str
    positives: int
    negatives: int
    threshold: float
    false_rejects: int
    false_accepts: int
    baseline_false_rejects: int
    baseline_false_accepts: int
    relative_false_rejects: float | None
    relative_false_accepts: float | None


# ---------------------------------------------------------------------- in a run


def scores(algorithm: Algorithm, server: Any, clients: Any, cohort: Cohort) -> dict[str, Tensor]:
    """By kind of model: the scores (m, longest) of each client's test samples."""
    made = algorithm.models(server, clients, cohort)
    found = {"global": made.globally, "personal": made.personal}
    return {kind: cohort.scores(theta, margin) for kind, theta in found.items() if theta is not None}


def margin(logits: Tensor) -> Tensor:
    """Of two classes, the second's logit over the first's."""
    return logits[..., 1] - logits[..., 0]


def marks(partition: Partition, clients: np.ndarray, labels: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
    """Label and state of the test samples of some clients (N, longest), NaN beyond its last."""
    out = {name: np.full((len(clients), partition.n_test.max()), np.nan) for name in ("label", "state")}
    for row, client in enumerate(clients):
        index = partition.index[slice(*partition.bounds[client, 2:])]
        own = labels[index] if partition.permutation is None else partition.permutation[client][labels[index]]
        out["label"][row, : len(index)], out["state"][row, : len(index)] = own, states[index]
    return out


# ---------------------------------------------------------------------- from what was kept


def cells(series: dict[str, np.ndarray], group: np.ndarray, states: Sequence[str]) -> list[Cell]:
    """Every model's figures in each device and state; without data there is no cell."""
    return [
        cell(kind, NAMES[device], state, *(series[name][here] for name in (kind, "label", "baseline")))
        for kind in KINDS if kind in series
        for device in range(int(group.max()) + 1)
        for state, here in parts(series["state"], group == device, states)
    ]  # fmt: skip


def parts(state: np.ndarray, clients: np.ndarray, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Where in the table (M, longest) the test samples of some clients in each state are."""
    there = clients[:, None] & ~np.isnan(state)
    choices = [(name, there & (state == number)) for number, name in enumerate(names)] + [(ALL, there)]
    yield from ((name, here) for name, here in choices if here.any())


def cell(model: str, device: str, state: str, scores: np.ndarray, labels: np.ndarray, baseline: np.ndarray) -> Cell:
    labels = labels.astype(int)
    found = false_accepts_at(scores, labels, baseline, 0.0)
    now, before, wake = found.model, found.baseline, int(labels.sum())
    return Cell(
        model, device, state, wake, len(labels) - wake, *now, before.rejects, before.accepts,
        now.rejects / before.rejects if before.rejects else None, found.relative,
    )  # fmt: skip


def write(folder: Path, found: Sequence[Cell]) -> None:
    """detection.csv; "NA" is what has no value."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Cell._fields)
    table.writerows(["NA" if value is None else value for value in one] for one in found)
    with whole(folder / "detection.csv") as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
