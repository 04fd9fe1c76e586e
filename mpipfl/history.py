"""What was measured in each evaluated round, per client; `metrics.csv` and `history.h5` are written from it.

Neither memory nor checkpoints grow with the rounds: rows that have become many are put into a volume, a sealed file
`volumes/round_NNNNN.h5` of all rows up to that round that are in no earlier one, and never written again. While a run
with volumes goes on, its `history.h5` has the rows since the last one and says, as `volumes`, where the others are; at
the end it has all of them.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from .files import hdf5, whole
from .metrics import mean, over_clients
from .sealed import content, sealed

KINDS = ("personal", "global")
Arrays = dict[str, np.ndarray]


class Record(NamedTuple):
    """A history as a checkpoint has it."""

    rows: Arrays  # of series that grow with the rounds, those in no volume
    once: Arrays  # what was found once
    figures: list[dict[str, float | int]]  # the rows of metrics.csv
    volumes: list[int]  # by their rounds


class History:
    """Series by name: `round` (R), and for each kind of model its accuracy and loss (R, M), on test and validation."""

    def __init__(self, n_train: np.ndarray, n_test: np.ndarray, **known: np.ndarray) -> None:
        self.n_train, self.n_test, self.known = n_train, n_test, known
        self.clear()

    def clear(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}  # those in no volume
        self.once: Arrays = {}
        self.figures: list[dict[str, float | int]] = []  # every evaluated round's row of metrics.csv
        self.volumes: list[int] = []

    @classmethod
    def of(cls, series: Arrays) -> History:
        """What the data sets of a whole history.h5 say of evaluations."""
        history = cls(series["n_train"], series["n_test"])
        for i, round in enumerate(series["round"]):
            history.append(round, {name: v[i] for name, v in series.items() if name.split("/")[0] in KINDS})
        return history

    @property
    def rounds(self) -> list[int]:
        return [int(figures["round"]) for figures in self.figures]

    def append(self, round: int, values: Arrays) -> None:
        """An evaluation's values."""
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

    def own(self, method: str, folder: Path) -> Arrays:
        """A method's own series by name; the run's folder has its volumes."""
        every = joined(folder, self.volumes, self._recent()) | self.once
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
        return figures

    def best(self, kind: str) -> int | None:
        """The index of the round with the best mean validation accuracy (the first of equals), None without any."""
        values = [figures.get(f"{kind}_validation_accuracy_mean", np.nan) for figures in self.figures]
        return None if not values or np.isnan(values).all() else int(np.nanargmax(values))

    def table(self) -> str:
        """The text of `metrics.csv`."""
        text = io.StringIO()
        if self.figures:
            table = csv.DictWriter(text, list(self.figures[-1]), restval="nan", lineterminator="\n")
            table.writeheader()
            table.writerows([{k: repr(v) for k, v in figures.items()} for figures in self.figures])
        return text.getvalue()

    # ------------------------------------------------------------------ to files and back

    def bytes(self) -> int:
        """Of the rows that are in no volume."""
        return sum(value.nbytes for rows in self.rows.values() for value in rows)

    def bound(self, round: int) -> History:
        """The same with its rows in a volume, which `write_volume` writes."""
        other = copy.copy(self)
        other.rows, other.volumes = {}, [*self.volumes, round]
        return other

    def write_volume(self, folder: Path, round: int) -> None:
        path = volume(folder, round)
        path.parent.mkdir(exist_ok=True)
        with sealed(path) as file:
            for name, values in self._recent().items():
                file[name] = values

    def record(self) -> Record:
        return Record(self._recent(), self.once, self.figures, self.volumes)

    def restore(self, record: Record) -> None:
        self.rows = {name: list(rows) for name, rows in record.rows.items()}
        self.once, self.figures, self.volumes = dict(record.once), list(record.figures), list(record.volumes)

    def write(self, folder: Path, ended: bool = False) -> None:
        """Both files, each in one step; of a run that has ended with the rows of all volumes."""
        with whole(folder / "metrics.csv") as temporary:
            temporary.write_text(self.table(), encoding="utf-8")
        volumes = self.volumes if ended else []
        with whole(folder / "history.h5") as temporary, hdf5(temporary) as file, contextlib.ExitStack() as opened:
            earlier = [opened.enter_context(h5py.File(volume(folder, round), "r")) for round in volumes]
            recent = self._recent()
            for name in sorted({*recent, *(name for part in earlier for name in names(part))}):
                fill(file, name, [part[name] for part in (*earlier, recent) if name in part])
            for name, values in {**self.once, "n_train": self.n_train, "n_test": self.n_test, **self.known}.items():
                file[name] = values
            if self.volumes and not ended:
                file["volumes"] = self.volumes

    def prune(self, folder: Path) -> None:
        """Leave no volumes but these: a run that had gone back to an earlier checkpoint has bound others."""
        for path in folder.glob("volumes/round_*.h5"):
            if path not in {volume(folder, round) for round in self.volumes}:
                path.unlink(missing_ok=True)


def volume(folder: Path, round: int) -> Path:
    return folder / "volumes" / f"round_{round:05d}.h5"


def names(file: h5py.File) -> list[str]:
    """Of a file's data sets."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def fill(file: h5py.File, name: str, parts: list[h5py.Dataset | np.ndarray]) -> None:
    """A data set of these rows, a part in memory at a time."""
    values = file.create_dataset(name, (sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    first = 0
    for part in parts:
        values[first : first + len(part)] = part[...]
        first += len(part)


def joined(folder: Path, volumes: Iterable[int], recent: Arrays) -> Arrays:
    """Series with the rows that are in volumes."""
    parts: dict[str, list[np.ndarray]] = {}
    for round in volumes:
        with h5py.File(volume(folder, int(round)), "r") as file:
            for name, values in content(file).items():
                parts.setdefault(name, []).append(values)
    for name, values in recent.items():
        parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) if len(values) > 1 else values[0] for name, values in parts.items()}


def all_series(folder: Path) -> Arrays:
    """All data sets of a run's `history.h5`, also of a run that goes on or was killed."""
    with h5py.File(folder / "history.h5", "r") as file:
        found = content(file)
    volumes = found.pop("volumes", ())
    return joined(folder, volumes, found)
