"""A run as its folder tells it: settings, figures by round, series by client, and what it cost.

Nothing but the folder's files is read. What is missing or damaged becomes a line in `problems`, and the run is shown as
far as it goes; only what is no run at all is an error.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from ..data.partition import Partition
from ..errors import DataError, UserError
from ..history import KINDS, History, all_series
from ..section import flat
from ..volumes import COSTS

# what bad files raise
READABLE = (OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, EOFError)


class ReportError(UserError):
    """A run that cannot be reported, or runs that cannot be compared."""

    code = 2


@dataclass(frozen=True, eq=False)
class Run:
    """One run's folder."""

    path: Path
    settings: dict[str, Any]  # by `key.path`
    head: str  # when and with which versions it was made
    rows: list[dict[str, float]]  # figures over clients of each evaluated round
    series: dict[str, np.ndarray]  # history.h5 by name
    summary: dict[str, Any]  # empty while the run has not finished
    digest: str | None  # of the partition
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.settings.get("name", self.path.name))

    @property
    def method(self) -> str:
        return str(self.settings.get("algorithm.kind", "unknown"))

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def last(self) -> dict[str, float]:
        """The figures of the last evaluated round."""
        return self.rows[-1]

    @property
    def rounds(self) -> np.ndarray:
        """The evaluated rounds."""
        return np.array([row["round"] for row in self.rows])

    def curve(self, name: str) -> np.ndarray:
        """A figure over the evaluated rounds; NaN where it is not there."""
        return np.array([row.get(name, np.nan) for row in self.rows])

    def best(self, kind: str) -> dict[str, float] | None:
        """The figures of the round with the best mean validation accuracy (the first of equals); None without any."""
        values = self.curve(f"{kind}_validation_accuracy_mean")
        return None if np.isnan(values).all() else self.rows[int(np.nanargmax(values))]

    def accuracies(self, kind: str) -> np.ndarray | None:
        """Every client's accuracy in the last round (M), None where it is not known."""
        values = self.series.get(f"{kind}/accuracy")
        return None if values is None or not len(values) or np.isnan(values[-1]).all() else values[-1]

    def has(self, kind: str) -> bool:
        """Whether it makes models of this kind: a personal model that is the global one does not count as its own."""
        figures = [[self.last.get(f"{k}_{what}_mean", np.nan) for what in ("accuracy", "loss", "error")] for k in KINDS]
        personal, general = figures
        if kind == "global":
            return not np.isnan(general).all()
        return any(p != g and not np.isnan(p) for p, g in zip(personal, general, strict=True))

    def own(self, method: str) -> dict[str, np.ndarray]:
        """What the method recorded, by name."""
        return {key.split("/", 1)[1]: v for key, v in self.series.items() if key.startswith(f"{method}/")}

    @property
    def clients(self) -> np.ndarray:
        """Which client each column of the series is of."""
        return self.series["clients"]

    @cached_property
    def group(self) -> np.ndarray | None:
        """The clients' true groups, None where they are not known."""
        try:
            return Partition.read(self.path / "partition.h5").group
        except DataError:
            return None


def read(path: Path) -> Run:
    """The run in this folder."""
    problems: list[str] = []
    settings, head = settings_of(path)
    summary = summary_of(path, problems)
    series = series_of(path, problems)
    rows = rows_of(path, series, summary, problems)
    if not rows:
        raise ReportError(f"{path} has {'; '.join(problems)}: there is nothing to show")
    return Run(path, settings, head, rows, series, summary, digest_of(path, problems), tuple(problems))


def settings_of(path: Path) -> tuple[dict[str, Any], str]:
    """The settings, and the line about versions above them."""
    try:
        text = (path / "config.yaml").read_text(encoding="utf-8")
        values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except FileNotFoundError:
        missing = "config.yaml" if (path / "summary.json").exists() else "summary.json"
        raise ReportError(f"{path} has no {missing}: it is not a run's folder") from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ReportError(f"{path / 'config.yaml'} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ReportError(f"{path / 'config.yaml'} holds no settings: {path} is not a run's folder")
    if not isinstance(values.get("seed", 0), int):
        raise ReportError(f"{path / 'config.yaml'}: seed: {values['seed']!r} is not a whole number")
    lines = [line[2:] for line in text.splitlines()[:2] if line.startswith("# ")]
    return flat(values), lines[1] if len(lines) > 1 else ""


def summary_of(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return {"seconds": float(summary["seconds"]), "ranks": int(summary["ranks"])} | summary
    except FileNotFoundError:
        problems.append("no summary.json: it has not finished")
    except READABLE as error:
        problems.append(f"a summary.json that cannot be read ({short(error)})")
    return {}


def series_of(path: Path, problems: list[str]) -> dict[str, np.ndarray]:
    """All data sets of history.h5; those by client only if they fit each other."""
    found: dict[str, np.ndarray] = {}
    try:
        every, lost = all_series(path)
        found = {name: values for name, values in every.items() if values.dtype.kind in "fiub"}
        problems += [f"{problem}: its rows are left out" for problem in lost]
        shape = (len(found["round"]), len(found["n_train"]))
        assert_shape(found["n_test"], shape[1:], "n_test")
        found.setdefault("clients", np.arange(shape[1]))  # an older run's
        assert_shape(found["clients"], shape[1:], "clients")
        for name in [n for n in found if n.split("/")[0] in KINDS]:
            assert_shape(found[name], shape, name)
        for name in [n for n in COSTS if n in found and found[n].shape != shape[:1]]:
            problems.append(f"{name} of the shape {found.pop(name).shape} in history.h5: left out")
    except FileNotFoundError:
        problems.append("no history.h5: nothing is known of single clients")
        return {}
    except READABLE as error:
        problems.append(f"a history.h5 that cannot be read ({short(error)})")
        return {}
    return found


def assert_shape(values: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    if values.shape != shape:
        raise ValueError(f"{name} has the shape {values.shape}, not {shape}")


def rows_of(
    path: Path, series: dict[str, np.ndarray], summary: dict[str, Any], problems: list[str]
) -> list[dict[str, float]]:
    """metrics.csv; without it what history.h5 says; without that the last line, of summary.json."""
    try:
        with open(path / "metrics.csv", encoding="utf-8", newline="") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        if rows and "round" in rows[0]:
            return rows
        problems.append("an empty metrics.csv")
    except FileNotFoundError:
        problems.append("no metrics.csv")
    except READABLE as error:
        problems.append(f"a metrics.csv that cannot be read ({short(error)})")
    try:
        if series:
            return list(History.of(series).figures)
        return [{key: np.nan if v is None else float(v) for key, v in summary["last"].items()}] if summary else []
    except READABLE as error:
        problems.append(f"no figures in its other files ({short(error)})")
        return []


def digest_of(path: Path, problems: list[str]) -> str | None:
    try:
        with h5py.File(path / "partition.h5", "r") as file:
            return str(file.attrs["digest"])
    except READABLE as error:
        problems.append(f"no partition.h5 that can be read ({short(error)})")
        return None


def short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."
