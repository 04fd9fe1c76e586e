"""Which runs belong together: those alike apart from their seed are one line of a table, the lines one comparison.

Runs on other data are refused, as their figures do not speak of the same thing; other seeds, repeats and runs that are
not whole are marked. Baselines of the quantum of improvement are found here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..config import check
from ..errors import UserError
from ..metrics import improvement, quantum_of_improvement
from ..section import flat, nested
from .runs import ReportError, Run

NOT_DATA = ("data.root", "data.source.download", "data.source.cache")
PLAIN = ("name", "seed", "output", "device", "threads", "train.cohort", "states.megabytes", "newcomers.run", *NOT_DATA)
WARM = "algorithm.warm_start.run"
LONGEST = 40  # characters of a label


class Figure(NamedTuple):
    """A mean over runs and its standard error, None for a single run."""

    mean: float
    error: float | None = None


def over_runs(values: Iterable[float | None]) -> Figure | None:
    """Mean ± standard error over the runs that have a number, None where none has."""
    found = np.array([v for v in values if v is not None and not math.isnan(v)])
    if not len(found):
        return None
    return Figure(float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None)


@dataclass(frozen=True, eq=False)
class Line:
    """Runs that differ in their seed only."""

    label: str
    runs: tuple[Run, ...]  # by seed
    own: dict[str, Any]  # the settings in which it differs from other lines, its method's name aside

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def state(self) -> str:
        """Empty for whole runs."""
        if not self.runs[0].finished:
            return f"unfinished, round {self.runs[0].last['round']:.0f} of {self.runs[0].settings.get('rounds', '?')}"
        return "files damaged" if any(run.problems for run in self.runs) else ""

    def kinds(self) -> list[str]:
        """The kinds of models it makes."""
        return [kind for kind in ("personal", "global") if any(run.has(kind) for run in self.runs)]

    def figure(self, of: Callable[[Run], float | None]) -> Figure | None:
        return over_runs(of(run) for run in self.runs)

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rounds that all its runs have evaluated, a figure's mean over runs there, and its standard error (or 0)."""
        rounds = sorted(set.intersection(*(set(run.rounds.tolist()) for run in self.runs)))
        table = np.array([run.curve(name)[np.isin(run.rounds, rounds)] for run in self.runs])
        spread = table.std(0, ddof=1) / math.sqrt(len(table)) if len(table) > 1 else np.zeros(len(rounds))
        return np.array(rounds), table.mean(0), spread


@dataclass(frozen=True, eq=False)
class Comparison:
    """Lines that may stand in one table."""

    lines: tuple[Line, ...]
    common: dict[str, Any]  # settings that are the same in all runs
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for line in self.lines for run in line.runs]

    def baseline(self, method: str, run: Run) -> Run | None:
        """The whole run of a method with this run's seed whose settings, the method's own aside, differ least."""
        there = [r for r in self.runs if r.method == method and r.seed == run.seed and r.finished]
        return min(there, key=lambda r: len(differing([r, run], without=("algorithm",))), default=None)

    def improvement(self, line: Line) -> list[np.ndarray]:
        """QoI of every client, for each of the line's runs whose baselines are there."""
        return self.quanta[line.label]

    @cached_property
    def quanta(self) -> dict[str, list[np.ndarray]]:
        """`improvement` of every line, by label."""
        return {line.label: self._quanta(line) for line in self.lines}

    def _quanta(self, line: Line) -> list[np.ndarray]:
        found = []
        for run in line.runs:
            local, average = self.baseline("local", run), self.baseline("fedavg", run)
            if local is not None and average is not None:
                parts = run.accuracies("personal"), average.accuracies("global"), local.accuracies("personal")
                if all(part is not None and len(part) == len(parts[0]) for part in parts):  # type: ignore[arg-type]
                    found.append(quantum_of_improvement(*parts))  # type: ignore[arg-type]
        return found

    def missing(self) -> str:
        """Why there is no quantum of improvement; empty where there is one."""
        if any(self.quanta.values()):
            return ""
        lacking = [m for m in ("local", "fedavg") if not any(r.method == m and r.finished for r in self.runs)]
        what = " and ".join(f"`{method}`" for method in lacking)
        reason = (
            f"a finished run of {what} on the same data" if what else "`local` and `fedavg` with the seeds of others"
        )
        return f"The quantum of improvement needs {reason}, with each client's accuracies."


def compare(runs: Sequence[Run]) -> Comparison:
    """The lines of these runs. Raises where they cannot be compared."""
    runs = completed(runs)
    refuse(runs)
    groups: dict[Any, list[Run]] = {}
    notes = [f"{run.path} has {problem}" for run in runs for problem in run.problems]
    for run in {run.path.resolve(): run for run in runs}.values():
        unfinished = None if run.finished else run.path
        key = (tuple(sorted((k, repr(v)) for k, v in deciding(run).items())), unfinished)
        if any(run.seed == other.seed for other in groups.get(key, [])):
            notes.append(f"{run.path} repeats {groups[key][0].path} (same settings and seed): it has a line of its own")
            key = (*key, run.path)  # type: ignore[assignment]
        groups.setdefault(key, []).append(run)
    every = [tuple(sorted(group, key=lambda run: run.seed)) for group in groups.values()]
    keys = differing([group[0] for group in every])
    labels = distinct(every)
    lines = tuple(
        Line(label, group, {k: v for k, v in deciding(group[0]).items() if k in keys and k != "algorithm.kind"})
        for label, group in zip(labels, every, strict=True)
    )
    if len({line.seeds for line in lines}) > 1:
        seeds = "; ".join(f"{line.label}: {', '.join(map(str, line.seeds))}" for line in lines)
        notes.append(f"the lines are means over different seeds ({seeds})")
    first = every[0][0]
    common = {k: v for k, v in deciding(first).items() if k not in keys}
    return Comparison(lines, common, tuple(notes))


def completed(runs: Sequence[Run]) -> Sequence[Run]:
    """Runs of several versions, with the defaults of settings that the older ones did not know of."""
    try:
        defaults = [flat(check(nested(run.settings), "").model_dump(mode="json")) for run in runs]
    except UserError:
        return runs  # a setting of another version that is not legal today: they are compared as they are
    told = {key for run in runs for key in run.settings}
    return [
        replace(run, settings={k: v for k, v in known.items() if k in told} | run.settings)
        for run, known in zip(runs, defaults, strict=True)
    ]


def deciding(run: Run) -> dict[str, Any]:
    """The settings that decide what a run is, its seed apart: that of the run it begins with too."""
    settings = {k: v for k, v in run.settings.items() if k not in PLAIN and not k.startswith("checkpoint.")}
    if isinstance(begin := settings.get(WARM), str):
        settings[WARM] = begin.removesuffix(f"_s{run.seed}")
    return settings


def differing(runs: Sequence[Run], without: Sequence[str] = ()) -> list[str]:
    """The settings in which runs differ, in their order in the files."""
    every = [deciding(run) for run in runs]
    keys = [k for k in dict.fromkeys(k for one in every for k in one) if k.split(".")[0] not in without]
    return [k for k in keys if len({repr(one.get(k, "absent")) for one in every}) > 1]


def refuse(runs: Sequence[Run]) -> None:
    """Raise where two runs have other data, or another partition with the same seed."""
    advice = "report them apart"
    first = runs[0]
    for run in runs[1:]:
        keys = [k for k in differing([first, run]) if k.startswith("data.") and k not in NOT_DATA]
        if keys:
            was, is_ = (r.settings.get(keys[0], "absent") for r in (first, run))
            raise ReportError(
                f"{run.path} cannot be compared with {first.path}: {keys[0]} is {is_}, not {was}; {advice}"
            )
    made: dict[int, Run] = {}
    for run in runs:
        other = made.setdefault(run.seed, run) if run.digest else run
        if other.digest != run.digest:
            raise ReportError(
                f"{run.path} cannot be compared with {other.path}: seed {run.seed} of both, but another partition "
                f"of the data (partition.h5); {advice}"
            )


def distinct(groups: Sequence[tuple[Run, ...]]) -> list[str]:
    """A short name for each line: its method, and what tells it from others of the same method."""
    labels = []
    for group in groups:
        run = group[0]
        alike = [other[0] for other in groups if other[0].method == run.method]
        parts = [
            f"{k.removeprefix('algorithm.')}={shown(run.settings[k])}"
            for k in differing(alike) if k in run.settings and run.settings[k] is not None
        ]  # fmt: skip
        label = f"{run.method} {' '.join(parts)}".strip()
        labels.append(label if len(label) <= LONGEST else run.name.removesuffix(f"_s{run.seed}"))
    repeated = {label for label in labels if labels.count(label) > 1}
    labels = [
        f"{label} ({group[0].path.name})" if label in repeated else label
        for label, group in zip(labels, groups, strict=True)
    ]
    return [label if label not in labels[:i] else f"{label} {i + 1}" for i, label in enumerate(labels)]


def shown(value: Any) -> str:
    """A setting in a few characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def improvement_figures(quanta: Sequence[np.ndarray]) -> dict[str, Figure | None]:
    """PUI, PUD, MPI, API, MPD and APD, over runs."""
    each = [improvement(qoi) for qoi in quanta]
    return {name: over_runs(one[name] for one in each) for name in improvement(np.array([]))}
