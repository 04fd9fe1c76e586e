"""What was measured in each evaluated round, per client; `metrics.csv` and `history.h5` are written from it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from .files import hdf5, whole
from .metrics import mean, over_clients

KINDS = ("personal", "global")


class History:
    """Series by name: `round` (R), and for each kind of model its accuracy and loss (R, M), on test and validation."""

    def __init__(self, n_train: np.ndarray, n_test: np.ndarray, **known: np.ndarray) -> None:
        self.series: dict[str, list[np.ndarray]] = {"round": []}
        self.n_train, self.n_test, self.known = n_train, n_test, known

    @property
    def rounds(self) -> list[int]:
        return [int(r) for r in self.series["round"]]

    def append(self, round: int, values: dict[str, np.ndarray]) -> None:
        self.series["round"].append(np.asarray(round))
        for name, value in values.items():
            rows = self.series.setdefault(name, [])
            missing = len(self.series["round"]) - 1 - len(rows)  # a checkpoint may be older than a series
            rows += [np.full_like(value, np.nan)] * missing + [value]

    def append_own(self, method: str, round: int, values: dict[str, np.ndarray]) -> None:
        """A method's own series, one row for each round it trained, beside their rounds: `<method>/<name>`."""
        for name, value in {"round": np.asarray(round), **values}.items():
            self.series.setdefault(f"{method}/{name}", []).append(np.asarray(value))

    def keep_own(self, method: str, values: dict[str, np.ndarray]) -> None:
        """What a method found once, before or between rounds: `<method>/<name>` holds just that."""
        self.series |= {f"{method}/{name}": list(value) for name, value in values.items()}

    def own(self, method: str) -> dict[str, np.ndarray]:
        """A method's own series by name."""
        return {key.split("/", 1)[1]: np.array(v) for key, v in self.series.items() if key.startswith(f"{method}/")}

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: np.array(self.series[name]) for name in sorted(self.series)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.series = {name: list(rows) for name, rows in arrays.items()}

    def row(self, index: int) -> dict[str, float | int]:
        """An evaluated round's figures: what `metrics.csv` has for it."""
        figures: dict[str, float | int] = {"round": self.rounds[index]}
        for kind in KINDS:
            accuracy = over_clients(self.series[f"{kind}/accuracy"][index], self.n_test, self.n_train)
            figures |= {f"{kind}_accuracy_{name}": value for name, value in accuracy.items()}
            for name in ("loss", "validation_accuracy", "validation_loss", "precision", "recall", "f1", "error"):
                if f"{kind}/{name}" in self.series:
                    figures[f"{kind}_{name}_mean"] = mean(self.series[f"{kind}/{name}"][index])
        return figures

    def best(self, kind: str) -> int | None:
        """The index of the round with the best mean validation accuracy (the first of equals), None without any."""
        values = [mean(v) for v in self.series.get(f"{kind}/validation_accuracy", [])]
        return None if not values or np.isnan(values).all() else int(np.nanargmax(values))

    def table(self) -> str:
        """The text of `metrics.csv`."""
        text = io.StringIO()
        rows = [self.row(i) for i in range(len(self.rounds))]
        if rows:
            table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows([{k: repr(v) for k, v in row.items()} for row in rows])
        return text.getvalue()

    def write(self, folder: Path) -> None:
        """Both files, each in one step."""
        with whole(folder / "metrics.csv") as temporary:
            temporary.write_text(self.table(), encoding="utf-8")
        with whole(folder / "history.h5") as temporary, hdf5(temporary) as file:
            for name, values in self.arrays().items():
                file[name] = values
            for name, values in {"n_train": self.n_train, "n_test": self.n_test, **self.known}.items():
                file[name] = values
