"""Predictions of `benchmarks.model` against rounds it has not seen, on 2, 3, 5 and 9 ranks of this machine.

There are more ranks than cores, so what is compared are CPU seconds of all ranks together, term by term. One job runs
all worlds, one after the other, while the ranks outside sleep. Ranks meet before every collective, asleep: what that
takes is in a phase of its own, which is no part of the model. Predicted and measured figures are both the least of
several repeats. A machine with other work is not always as fast: a fixed piece of work beside each round tells
its pace.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpipfl import process
from mpipfl.comm import Comm
from mpipfl.data.sizes import Sized
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder
from mpipfl.telemetry import PHASES, Telemetry

from . import common
from .common import Row, apart, phases
from .model_calibrate import MODELS, TESTED
from .model_messages import Cost, Machine
from .model_round import costs
from .model_units import Calibration, read, yardstick
from .model_workers import Task
from .scaling import part

FIRST = 2  # the round after the warm-up
TERMS = {  # of the model, in each phase of a run
    "train": ("training",),
    "reduce": ("own sums", "reduce"),
    "server": ("server",),
    "broadcast": ("broadcast",),
    "evaluate": ("evaluation", "history"),
    "checkpoint": ("checkpoint",),
    "other": ("choosing clients", "votes", "bookkeeping"),
}


class Run(NamedTuple):
    """Something to be predicted."""

    model: str
    sizes: str = "equal"


RUNS = (Run("logistic"), Run("mlp"), Run("mlp", "power_law"), Run("lenet"))


class Patient(Comm):
    """Ranks that wait for each other asleep before every collective; what they do then is the phase `waiting`."""

    telemetry = Telemetry()

    def count(self) -> Telemetry:
        """CPU seconds from now on."""
        self.crowded = True
        self.telemetry = Telemetry(time.process_time)
        self.telemetry.seconds["waiting"] = 0.0
        return self.telemetry

    def meet(self) -> None:
        if "waiting" in self.telemetry.seconds:
            with self.telemetry.phase("waiting"):
                super().meet()

    def broadcast(self, buffer: Any) -> None:
        self.meet()
        super().broadcast(buffer)

    def agree(self, *votes: int) -> int:
        self.meet()
        return super().agree(*votes)


def main() -> int:
    parser = common.options(__doc__)
    parser.add_argument("calibration", type=Path, metavar="FILE")
    parser.add_argument("--ranks", type=int, nargs="+", required=True)
    options = parser.parse_args()
    comm = Comm()
    process.tune(1)
    try:
        checked(comm, options.calibration, options.ranks, options.quick, options.output)
        return 0
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def checked(comm: Comm, path: Path, ranks: list[int], quick: bool, output: Path | None) -> None:
    """Every run on so many ranks, and how far the predictions are off."""
    calibration, repeats = read(path), 1 if quick else 4
    tables: dict[str, list[Row]] = {}
    for count in ranks:
        inside = part(comm, max(1, count - 1))
        rows = []
        for run in RUNS[:1] if quick else RUNS:
            work = None if inside is None else partial(compared, inside, run, calibration, repeats)
            rows.append(apart(comm, work))
        tables[f"{count} rank(s), CPU ms of a round: predicted, measured"] = [row for row in rows if row]
    if comm.is_server:
        everything = [row for rows in tables.values() for row in rows]
        tables["how far predictions are off, %"] = [errors(everything, False), errors(everything, True)]
        more = {"calibration": path.name, "ranks": list(ranks), "mpi": comm.library()}
        common.publish("prediction", tables, output, more)


def compared(inside: Comm, run: Run, calibration: Calibration, repeats: int) -> Row:
    """One run, on its server: what was predicted and what it took."""
    network = calibration.networks[run.model]
    mpi: Any = inside.mpi
    comm, work = Patient(mpi), MODELS[run.model]
    config, plan = common.experiment(work, Sized(sizes=run.sizes), TESTED, network.width)
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(comm.text(mine if comm.is_server else None))
        experiment = Experiment(config, plan, comm, RunFolder(folder), Reporter(False, 1, run.model))
        telemetry = comm.count()
        experiment.telemetry = experiment.fl.telemetry = telemetry
        spent, pace = measured(experiment, repeats)
        comm.barrier()
    task = Task(
        network, work.clients, work.drawn, work.samples, Sized(sizes=run.sizes), TESTED,
        evaluate_every=1, checkpoint_every=1, rounds=repeats + 2,
    )  # fmt: skip
    found = costs(task, Machine(calibration.units), comm.size, range(FIRST, FIRST + repeats))
    faster = calibration.units["yardstick"]["once"] / pace
    return row(run, found, spent, comm.workers, faster) if comm.is_server else {}


def measured(experiment: Experiment, repeats: int) -> tuple[np.ndarray, float]:
    """CPU seconds (repeats, ranks, phases), on the server, after a warm-up; and those of the yardstick."""
    found, paces = [], []
    for _ in range(repeats + 1):
        paces.append(yardstick() if experiment.comm.is_server else 1.0)
        before = phases(experiment.telemetry)
        experiment.step("train", experiment.train)
        experiment.step("evaluate", experiment.evaluate)
        with experiment.telemetry.phase("evaluate"):
            experiment.note()
        experiment.step("checkpoint", experiment.save)
        rows = experiment.comm.gather((phases(experiment.telemetry) - before)[None])
        found.append(np.concatenate(rows) if rows else np.empty(0))
    return np.stack(found[1:]), min(paces)


def row(run: Run, found: dict[str, Cost], spent: np.ndarray, workers: list[int], pace: float) -> Row:
    """Milliseconds, predicted and measured, of each phase and of the whole."""
    together = spent.sum(1)  # (repeats, phases)
    train = PHASES.index("train")
    pairs = {
        phase: (sum(found[term].total for term in terms), float(together[:, PHASES.index(phase)].min()))
        for phase, terms in TERMS.items()
    }
    whole = sum(cost.total for cost in found.values()), float(together[:, : len(PHASES)].sum(1).min())
    slowest = found["training"].path + found["imbalance"].path
    pairs |= {
        "the slowest worker's training": (slowest, float(spent[:, workers, train].max(1).min())),
        "whole": whole,
    }
    return {
        "model": run.model,
        "sizes": run.sizes.replace("_", " "),
        **{name: f"{1e3 * a:.3g}, {1e3 * b:.3g} ({100 * (a / b - 1):+.0f} %)" for name, (a, b) in pairs.items()},
        "waiting (not predicted)": float(1e3 * together[:, -1].min()),
        "the machine's pace, times the calibration's": pace,
        "samples": {"pairs": pairs, "pace": pace, "spent": together.round(6).tolist()},
    }


def errors(rows: list[Row], paced: bool) -> Row:
    """Over all runs, the median of the predictions' errors without their signs, and the two extremes: as they are, or
    as they would be if the machine had been as fast as at the calibration."""
    found: Row = {"predicted for the machine's pace": "at the run" if paced else "at the calibration"}
    for name in rows[0]["samples"]["pairs"]:
        off = []
        for samples in (row["samples"] for row in rows):
            predicted, took = samples["pairs"][name]
            off.append(100 * (predicted / (samples["pace"] if paced else 1) / took - 1))
        found[name] = f"{common.middle(np.abs(off).tolist()):.0f} ({min(off):+.0f} to {max(off):+.0f})"
    return found


if __name__ == "__main__":
    sys.exit(main())
