"""What was measured in each evaluated round, per client; `metrics.csv` and `history.h5` are written from it.

Neither memory nor checkpoints grow with the rounds: rows that have become many are bound in a volume (`volumes.py`).
While a run with volumes goes on, its `history.h5` has the rows since the last one and names the others; at the end it
has all of them.
"""

from __future__ import annotations

import copy
import csv
import io
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from . import volumes
from .files import hdf5, whole
from .metrics import mean, over_clients
from .sealed import content
from .volumes import ALIGNED, COSTS, KINDS, Arrays, Volume


class Record(NamedTuple):
    """A history as a checkpoint has it."""

    rows: Arrays  # of series that grow with the rounds, those in no volume
    once: Arrays  # what was found once
    figures: list[dict[str, float | int]]  # the rows of metrics.csv
    volumes: list[Volume]


class History:
    """Series by name: `round` (R); for each kind of model its accuracy and loss (R, M), on test and validation; what
    the round cost, `streams` and `uplinks` (R)."""

    def __init__(self, n_train: np.ndarray, n_test: np.ndarray, **known: np.ndarray) -> None:
        self.n_train, self.n_test, self.known = n_train, n_test, known
        self.clear()

    def clear(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}  # those in no volume
        self.once: Arrays = {}
        self.figures: list[dict[str, float | int]] = []  # every evaluated round's row of metrics.csv
        self.volumes: list[Volume] = []

    @classmethod
    def of(cls, series: Arrays) -> History:
        """What the data sets of a whole history.h5 say of evaluations."""
        history = cls(series["n_train"], series["n_test"])
        for i, round in enumerate(series["round"]):
            history.append(round, {name: v[i] for name, v in series.items() if name.split("/")[0] in ALIGNED})
        return history

    @property
    def rounds(self) -> list[int]:
        return [int(figures["round"]) for figures in self.figures]

    def append(self, round: int, values: Arrays) -> None:
        """An evaluation's values, and what its round cost."""
        rounds = self.rows.setdefault("round", [])
        rounds.append(np.asarray(round))
        for name, value in values.items():
            rows = self.rows.setdefault(name, [])
            missing = len(rounds) - 1 - len(rows)  # a checkpoint may be older than a series
            rows += [np.full_like(value, np.nan)] * missing + [value]
        self.figures.append(self._figures(round, values))

    def append_own(self, method: str, round: int, values: Arrays) -> None:
        """A method's own series, one row for each round it trained, beside their rounds: `<method>/<name>`."""
        for name, value in {"round": np.asarray(round), **values}.items():
            self.rows.setdefault(f"{method}/{name}", []).append(np.asarray(value))

    def keep_own(self, method: str, values: Arrays) -> None:
        """What a method found once, before or between rounds: `<method>/<name>` holds just that."""
        self.once |= {f"{method}/{name}": value for name, value in values.items()}

    def own(self, method: str, bound: list[Path]) -> Arrays:
        """A method's own series by name, with the rows in these volumes."""
        recent = self._recent()
        mine = [name for name in volumes.names(bound, recent) if name.startswith(f"{method}/")]
        every = {name: volumes.series(bound, recent, name) for name in mine} | self.once
        return {name.split("/", 1)[1]: values for name, values in every.items() if name.startswith(f"{method}/")}

    def _recent(self) -> Arrays:
        return {name: np.array(self.rows[name]) for name in sorted(self.rows)}

    # ------------------------------------------------------------------ figures over clients

    def _figures(self, round: int, values: Arrays) -> dict[str, float | int]:
        figures: dict[str, float | int] = {"round": int(round)}
        for kind in KINDS:
            accuracy = over_clients(values[f"{kind}/accuracy"], self.n_test, self.n_train)
            figures |= {f"{kind}_accuracy_{name}": value for name, value in accuracy.items()}
            for name in ("loss", "validation_accuracy", "validation_loss", "precision", "recall", "f1", "error"):
                if f"{kind}/{name}" in values:
                    figures[f"{kind}_{name}_mean"] = mean(values[f"{kind}/{name}"])
        return figures | {name: float(values[name]) for name in COSTS if name in values}

    def best(self, kind: str) -> int | None:
        """The index of the round with the best mean validation accuracy (the first of equals), None without any."""
        values = [figures.get(f"{kind}_validation_accuracy_mean", np.nan) for figures in self.figures]
        return None if not values or np.isnan(values).all() else int(np.nanargmax(values))

    def table(self) -> str:
        """The text of `metrics.csv`."""
        text = io.StringIO()
        if self.figures:
            table = csv.DictWriter(text, columns(self.figures), restval="nan", lineterminator="\n")
            table.writeheader()
            table.writerows([{k: repr(v) for k, v in figures.items()} for figures in self.figures])
        return text.getvalue()

    # ------------------------------------------------------------------ to files and back

    def size(self) -> int:
        """Bytes of the rows that are in no volume."""
        return sum(value.nbytes for rows in self.rows.values() for value in rows)

    def bind(self, folder: Path, round: int) -> bytes:
        """Write the rows up to this round into a volume. Its seal."""
        return self._next(round).write(folder, self._recent())

    def bound(self, round: int, seal: bytes) -> History:
        """The same, whose rows are in that volume."""
        other = copy.copy(self)
        other.rows, other.volumes = {}, [*self.volumes, self._next(round)._replace(seal=seal)]
        return other

    def _next(self, round: int) -> Volume:
        return Volume(self.volumes[-1].last + 1 if self.volumes else 0, round)

    def record(self) -> Record:
        return Record(self._recent(), self.once, self.figures, self.volumes)

    def restore(self, record: Record) -> None:
        self.rows = {name: list(rows) for name, rows in record.rows.items()}
        self.once, self.figures, self.volumes = dict(record.once), list(record.figures), list(record.volumes)

    def write(self, folder: Path, bound: list[Path] | None = None) -> None:
        """Both files, each in one step; of a run that has ended with the rows in its volumes."""
        with whole(folder / "metrics.csv") as temporary:
            temporary.write_text(self.table(), encoding="utf-8")
        with whole(folder / "history.h5") as temporary, hdf5(temporary) as file:
            recent = self._recent()
            for name in volumes.names(bound or [], recent):
                file[name] = volumes.series(bound or [], recent, name)
            once = {name: self.once[name] for name in sorted(self.once)}  # restored ones come in another order
            for name, values in {**once, "n_train": self.n_train, "n_test": self.n_test, **self.known}.items():
                file[name] = values
            if bound is None:
                volumes.enlist(file, self.volumes)


def columns(figures: list[dict[str, float | int]]) -> list[str]:
    """Of metrics.csv; other versions' rows may have others."""
    return list(dict.fromkeys(name for row in figures for name in row))


def all_series(folder: Path) -> tuple[Arrays, list[str]]:
    """All data sets of a run's `history.h5`, also of a run that goes on or was killed, and what is wrong with volumes
    whose rows are missing."""
    with h5py.File(folder / "history.h5", "r") as file:
        named = volumes.listed(file)
        recent = {name: values for name, values in content(file).items() if not name.startswith("volumes/")}
    paths, problems = volumes.sound(folder, named)
    return volumes.joined(paths, recent), problems
