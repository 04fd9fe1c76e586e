"""What `benchmarks.model` needs to know of a machine, measured in about a minute on two ranks.

Rank 0 measures what a rank does by itself, in CPU seconds, while the other one sleeps; both then measure messages, by
the clock and in CPU seconds. Each figure is the least of several repeats, taken in turns, as others may be at work on
the machine; the units of a term are the non-negative ones with the least relative error over its measurements.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from mpipfl import process, schedule
from mpipfl.cohort import Cohort
from mpipfl.comm import MPI, Comm
from mpipfl.data.sizes import Sized
from mpipfl.evaluate import by_class
from mpipfl.experiment import Experiment
from mpipfl.federation import Federation
from mpipfl.history import History
from mpipfl.placement import place
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder
from mpipfl.telemetry import Telemetry

from . import common
from .common import apart
from .model_messages import Units
from .model_round import HISTORY
from .model_units import OTHERS, Calibration, Counts, Measured, fit, fitted, least, yardstick
from .model_wires import Server, messages
from .model_workers import Network, swept
from .workloads import CLASSES, ROUNDS, Workload

MODELS = dict(zip(("logistic", "lenet", "mlp"), ROUNDS, strict=True))
SMALL = MODELS["logistic"]._replace(samples=20)  # where clients count, not what they have
TESTED = 0.2  # test samples of a client, as a share of those it trains on
WIDTHS = (2, 4, 8, 32)  # rows of a cohort
STEPS = (2, 8)  # of a client
FIGURES = [
    f"{kind}/{name}" for kind in ("personal", "global")
    for name in ("accuracy", "loss", "validation_accuracy", "validation_loss", "precision", "recall", "f1")
]  # fmt: skip


def main() -> int:
    options = common.options(__doc__).parse_args()
    comm = Comm()
    process.tune(1)
    try:
        found = calibrated(comm, 1 if options.quick else 5)
        if found is not None:
            networks = {name: network._asdict() for name, network in found.networks.items()}
            more = {"units": found.units, "networks": networks, "mpi": comm.library()}
            common.publish("calibration", tables(found), options.output, more)
        return 0
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def tables(found: Calibration) -> dict[str, list[common.Row]]:
    """What was found, to be read by people."""
    return {
        "models, µs of each": [
            {"model": name, "numbers": f"{one.dimension:,}", "batch": one.batch, "rows of a cohort": one.width,
             **{f"training: {cause}": 1e6 * seconds for cause, seconds in one.training.items()},
             **{f"evaluation: {cause}": 1e6 * seconds for cause, seconds in one.sweep.items()}}
            for name, one in found.networks.items()
        ],
        "units, ns of each": [
            {f"{term}: {cause}": 1e9 * seconds for term, some in found.units.items() if term != "memory"
             for cause, seconds in some.items()}
        ],
    }  # fmt: skip


def calibrated(comm: Comm, repeats: int) -> Calibration | None:
    """The machine's units, on rank 0; with two ranks."""
    found = apart(comm, (lambda: alone(repeats)) if comm.is_server else None)
    wires = messages(comm, 2 * repeats)
    return None if found is None else found._replace(units=found.units | wires)


# ---------------------------------------------------------------------- what a rank does by itself


def alone(repeats: int) -> Calibration:
    program = float(psutil.Process().memory_info().rss)
    comm, pace = Comm(MPI.COMM_SELF), yardstick()
    with tempfile.TemporaryDirectory() as folder:
        networks = {name: network(name, work, comm, Path(folder), repeats) for name, work in MODELS.items()}
        units = {
            "choosing clients": fitted(4 * repeats, *(choosing(comm, *one) for one in ((100, 100), (20_000, 100),
                                       (20_000, 5_000), (2_000, 2_000), (200_000, 1_000)))),
            "history": fitted(repeats, keeping(comm, 100), keeping(comm, 20_000)),
        }  # fmt: skip
        units |= sums(comm, 3 * repeats)
        units["evaluation"] = scoring(comm, Path(folder), repeats)
        units["checkpoint"] = saving(comm, Path(folder), repeats)
        units["bookkeeping"] = bookkeeping(comm, Path(folder), 2 * repeats, units["choosing clients"])
    units |= {"memory": {"program": program}, "yardstick": {"once": min(pace, yardstick())}}
    return Calibration(units, networks)


def network(name: str, work: Workload, comm: Comm, folder: Path, repeats: int) -> Network:
    """A model's steps in training and in evaluation: of two rows, and of more, up to as many as are fastest here."""
    few = work._replace(samples=min(work.samples, 8 * work.batch))
    experiment = trial(few, max(WIDTHS), comm, folder)
    theta = experiment.server.theta
    cohorts = {width: experiment.cohort(np.arange(width), round=1) for width in WIDTHS}
    tried = [partial(cohort.descend, theta, steps=STEPS[0]) for cohort in cohorts.values()]
    each = np.divide(least(tried, repeats, warm=True), WIDTHS)
    width = WIDTHS[int(np.argmax(each <= 1.05 * each.min()))]  # a wider cohort must be worth it
    training, evaluation = list[Measured](), list[Measured]()
    for rows in [rows for rows in WIDTHS if rows <= width]:
        for steps in STEPS:
            counts = {"clients": rows, "cohorts": 1.0, "steps": steps, "rows": steps * rows}
            training.append((counts, partial(cohorts[rows].descend, theta, steps=steps)))
        for part, samples in (("test", experiment.plan.partition.n_test), ("train", experiment.plan.partition.n_train)):
            load = swept(samples[:rows], np.zeros(rows, dtype=np.int64), 1, rows)
            counts = {name: float(count[0]) for name, count in load._asdict().items()}
            evaluation.append((counts, partial(cohorts[rows].evaluate, theta, part)))
    train, sweep = (fitted(repeats, *measured, warm=True) for measured in (training, evaluation))
    return Network(name, experiment.plan.model.dimension, work.batch, width, train, sweep)


def trial(work: Workload, clients: int, comm: Comm, folder: Path, sizes: Sized | None = None) -> Experiment:
    """So many clients of a workload, on this rank."""
    some = work._replace(clients=clients, drawn=clients)
    config, plan = common.experiment(some, sizes, TESTED, max(WIDTHS))
    return Experiment(config, plan, comm, RunFolder(folder), Reporter(False, 1, work.name))


def choosing(comm: Comm, clients: int, drawn: int) -> Measured:
    """What every rank does before a round's training: who is in it, and where they train."""
    fl, work = Federation(comm, Telemetry(), clients), np.ones(clients)

    def choose() -> None:
        who = schedule.participants(0, 1, clients, drawn / clients)
        hosts = place(work[who], [0, 1, 2, 3]) if drawn < clients else np.zeros(clients, dtype=np.int64)
        fl.begin(1, who, hosts, np.isin(who, who))

    return {"once": 1, "client": clients, "drawn": drawn, "placed": drawn if drawn < clients else 0}, choose


def keeping(comm: Comm, clients: int) -> Measured:
    """What every rank does with the figures of all clients."""
    fl, everyone = Federation(comm, Telemetry(), clients), np.arange(clients)
    fl.begin(0, everyone, np.zeros(clients, dtype=np.int64))
    figures, ones = torch.rand(clients, len(FIGURES), dtype=torch.float64), np.ones(clients)

    def keep() -> None:
        table, history = fl.table(figures), History(ones, ones)
        history.append(0, {name: table[:, i].copy() for i, name in enumerate(FIGURES)})

    return {"once": 1, "client": clients}, keep


def bookkeeping(comm: Comm, folder: Path, repeats: int, choosing: Counts) -> Counts:
    """What a rank does in a round, its evaluation and its checkpoint besides all else."""
    clients = 64
    experiment = trial(SMALL, clients, comm, folder)
    telemetry = experiment.telemetry = experiment.fl.telemetry = Telemetry(time.process_time)
    spent = []
    for _ in range(repeats + 1):
        before = telemetry.seconds["other"]
        for name in ("train", "evaluate", "save"):
            experiment.step(name, getattr(experiment, name))
        spent.append(telemetry.seconds["other"] - before)
    known = choosing["once"] + clients * (choosing["client"] + choosing["drawn"])
    return {"once": max(0.0, min(spent[1:]) - known)}


def mean(server: Server, total: Any) -> Server:
    return Server(total.theta / total.n)


def sums(comm: Comm, repeats: int) -> Units:
    """A worker's share of an exact sum, and the server's step, by their phases. Slices are of the same work."""
    telemetry = Telemetry(time.process_time)
    found: dict[str, list[float]] = {"reduce": [], "server": []}
    shapes = [(1, 1_000), (100, 1_000), (10, 60_000), (1, 500_000), (8, 500_000), (2, 8_000_000)]  # clients, numbers
    for clients, numbers in shapes:
        fl = Federation(comm, telemetry, clients)
        fl.begin(1, np.arange(clients), np.zeros(clients, dtype=np.int64))
        theta, weight = torch.rand(clients, numbers), torch.ones(clients, dtype=torch.float64)
        server, spent = Server(torch.zeros(numbers)), []
        for _ in range(repeats + 1):
            OTHERS.fill(0)
            before = dict(telemetry.seconds)
            fl.aggregate(mean, server, theta=(weight, theta), n=weight)
            spent.append([telemetry.seconds[phase] - before[phase] for phase in found])
        for phase, seconds in zip(found, np.min(spent[1:], 0).tolist(), strict=True):
            found[phase].append(seconds)
    own = [{"once": 1.0, "number": float(clients * d), "vector": float(d)} for clients, d in shapes]
    made = [{"once": 1.0, "number": float(d)} for _, d in shapes]
    return {"own sums": fit(own, found["reduce"]), "server": fit(made, found["server"])}


def scoring(comm: Comm, folder: Path, repeats: int) -> Counts:
    """What an evaluation takes for each client besides the sweep over its test samples: a sweep that finds no
    validation samples, and marks by classes."""
    measured = list[Measured]()
    for clients in (64, 1024):
        experiment = trial(SMALL, clients, comm, folder)
        cohort, theta = experiment.cohort(np.arange(clients)), experiment.server.theta
        measured.append(({"once": 1, "client": clients}, partial(marked, cohort, theta, cohort.evaluate(theta).said)))
    return fitted(repeats, *measured)


def marked(cohort: Cohort, theta: Tensor, said: Tensor) -> object:
    return cohort.evaluate(theta, "validation"), by_class(cohort.labels(), said, CLASSES)


def saving(comm: Comm, folder: Path, repeats: int) -> Counts:
    """A checkpoint with its histories; how long the disk takes is not in it."""
    measured = []
    for clients, numbers, evaluations in ((64, 10_000, 1), (64, 2_000_000, 1), (1024, 10_000, 2), (1024, 10_000, 100)):
        experiment = trial(SMALL, clients, comm, folder)
        for round in range(evaluations):
            experiment.history.append(round, dict.fromkeys(FIGURES, np.random.default_rng(round).random(clients)))
        experiment.server = experiment.server._replace(theta=torch.rand(numbers))
        counts = {"once": 1.0, "byte": 4.0 * numbers, "past": float(HISTORY * clients * evaluations)}
        measured.append((counts, partial(experiment.step, "checkpoint", experiment.save)))
    return fitted(repeats, *measured)


if __name__ == "__main__":
    sys.exit(main())
